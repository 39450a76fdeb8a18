// SPDX-License-Identifier: Apache-2.0
// Tasks whose examples have a class each: cross entropy of a softmax, judged by accuracy.
#pragma once

#include "tasks/task.hpp"

namespace cdgrab::tasks {

class Classifier : public Task {
 public:
  using Task::Task;

  Tensor loss(Network& network, const Examples& batch) const override;
  Tensor losses(Network& network, const Examples& batch) const override;
  [[nodiscard]] double measure(Network& network) const override;
  [[nodiscard]] std::vector<std::int64_t> labels() const override;

 protected:
  [[nodiscard]] Metric plain_metric() const override { return {"accuracy", true}; }
  /// Of each example, from what the network puts out.
  [[nodiscard]] virtual Tensor predicted(const Tensor& outputs) const { return outputs.argmax(1); }
};

}  // namespace cdgrab::tasks
