// SPDX-License-Identifier: Apache-2.0
// A task: examples as tensors, a model for them, and the loss of some of them.
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tasks/catalogue.hpp"

namespace cdgrab::tasks {

using at::Tensor;

class Network : public ::torch::nn::Module {
 public:
  /// One output per example, along the first dimension.
  virtual Tensor forward(const Tensor& inputs) = 0;
};

/// A network whose parameters are views of one vector, and their gradients of another: optimizers,
/// averages and hashes see two vectors.
class Model {
 public:
  explicit Model(std::shared_ptr<Network> network);

  [[nodiscard]] Network& network() const { return *network_; }
  [[nodiscard]] const Tensor& weights() const { return weights_; }
  [[nodiscard]] const Tensor& gradient() const { return gradient_; }
  [[nodiscard]] const std::vector<Tensor>& parameters() const { return parameters_; }

 private:
  std::shared_ptr<Network> network_;
  std::vector<Tensor> parameters_;
  Tensor weights_;
  Tensor gradient_;
};

/// Row i of both belongs to example i.
struct Examples {
  Tensor inputs;
  Tensor targets;

  [[nodiscard]] std::int64_t size() const { return inputs.defined() ? inputs.size(0) : 0; }
  /// These rows, copied.
  [[nodiscard]] Examples select(const Tensor& index) const;
  /// Rows first .. first + count - 1, not copied.
  [[nodiscard]] Examples slice(std::int64_t first, std::int64_t count) const;
};

/// What a model is judged by beside the loss.
struct Metric {
  std::string name;
  bool larger_is_better = false;
};

/// Nothing here changes after construction: many runs may share one.
class Task {
 public:
  Task(const TaskInfo& info, bool wide, Examples training, Examples validation);
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  [[nodiscard]] const TaskInfo& info() const { return info_; }
  [[nodiscard]] std::size_t examples() const { return static_cast<std::size_t>(training_.size()); }
  [[nodiscard]] const Examples& training() const { return training_; }
  [[nodiscard]] const Examples& validation() const { return validation_; }

  /// The same seed gives the same weights.
  [[nodiscard]] Model make_model(std::uint64_t seed) const { return make_model(seed, wide_); }
  /// In float64 if `wide`, whatever the examples are.
  [[nodiscard]] Model make_model(std::uint64_t seed, bool wide) const;
  /// The class of each training example, from 0 on; empty where examples have none.
  [[nodiscard]] virtual std::vector<std::int64_t> labels() const { return {}; }
  /// Whether the loss is a convex function of the weights.
  [[nodiscard]] virtual bool convex() const { return false; }

  /// The mean over `batch`, without the penalty: what backward() differentiates and observe() reads.
  virtual Tensor loss(Network& network, const Examples& batch) const = 0;
  /// One per example of `batch`.
  virtual Tensor losses(Network& network, const Examples& batch) const = 0;
  /// With "train_" before its name where there are no validation examples, and training examples stand in.
  [[nodiscard]] Metric metric() const;
  [[nodiscard]] virtual double measure(Network& network) const = 0;
  /// Of each training example, in float64, without gradients.
  [[nodiscard]] std::vector<double> training_losses(Network& network) const;

  /// Of the examples' bytes: another file under the same name is another task.
  [[nodiscard]] std::uint64_t fingerprint() const;
  [[nodiscard]] std::size_t data_bytes() const;

 protected:
  [[nodiscard]] virtual std::shared_ptr<Network> make_network() const = 0;
  [[nodiscard]] virtual Metric plain_metric() const = 0;
  /// Examples that are evaluated at once: as many as are fast, and fit.
  [[nodiscard]] virtual std::int64_t evaluated_at_once() const = 0;
  /// Those that measure() looks at.
  [[nodiscard]] const Examples& judged() const { return validation_.size() > 0 ? validation_ : training_; }
  /// The sum over the examples of what `value(batch)`, one number, says of each batch.
  template <class Value>
  double sum_over(const Examples& examples, const Value& value) const;

 private:
  TaskInfo info_;
  bool wide_;  ///< parameters are float64
  Examples training_;
  Examples validation_;
};

template <class Value>
double Task::sum_over(const Examples& examples, const Value& value) const {
  const at::NoGradGuard no_grad;
  double sum = 0.0;
  for (std::int64_t first = 0; first < examples.size(); first += evaluated_at_once())
    sum += value(examples.slice(first, evaluated_at_once())).template item<double>();
  return sum;
}

std::shared_ptr<const Task> open_logistic(const TaskInfo& info, const Source& source);
std::shared_ptr<const Task> open_lenet(const TaskInfo& info, const Source& source);
std::shared_ptr<const Task> open_mlp(const TaskInfo& info, const Source& source, const Sizes& sizes);
std::shared_ptr<const Task> open_lstm(const TaskInfo& info, const Source& source, const Sizes& sizes);
std::shared_ptr<const Task> open_gpt(const TaskInfo& info, const Source& source, const Sizes& sizes);

}  // namespace cdgrab::tasks
