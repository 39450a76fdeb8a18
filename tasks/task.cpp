// SPDX-License-Identifier: Apache-2.0
#include "tasks/task.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "cdgrab/error.hpp"

namespace cdgrab::tasks {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29U);
}

std::uint64_t hash_of(const Tensor& tensor, std::uint64_t hash) {
  if (!tensor.defined()) return mix(hash, 1);
  for (const std::int64_t side : tensor.sizes()) hash = mix(hash, static_cast<std::uint64_t>(side));
  const Tensor values = tensor.contiguous();
  const auto* bytes = static_cast<const char*>(values.const_data_ptr());
  const std::size_t count = values.nbytes();
  for (std::size_t i = 0; i < count; i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof(word), count - i));
    hash = mix(hash, word);
  }
  return hash;
}

std::size_t bytes_of(const Tensor& tensor) { return tensor.defined() ? tensor.nbytes() : 0; }

}  // namespace

Model::Model(std::shared_ptr<Network> network)
    : network_(std::move(network)), parameters_(network_->parameters()) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> pieces;
  for (const Tensor& p : parameters_) pieces.push_back(p.detach().reshape({-1}));
  weights_ = at::cat(pieces);
  gradient_ = at::zeros_like(weights_);
  std::int64_t begin = 0;
  for (Tensor& p : parameters_) {
    p.set_data(weights_.narrow(0, begin, p.numel()).view(p.sizes()));
    p.mutable_grad() = gradient_.narrow(0, begin, p.numel()).view(p.sizes());
    begin += p.numel();
  }
}

Examples Examples::select(const Tensor& index) const {
  return {inputs.index_select(0, index), targets.index_select(0, index)};
}

Examples Examples::slice(std::int64_t first, std::int64_t count) const {
  const std::int64_t length = std::min(count, size() - first);
  return {inputs.narrow(0, first, length), targets.narrow(0, first, length)};
}

Task::Task(const TaskInfo& info, bool wide, Examples training, Examples validation)
    : info_(info), wide_(wide), training_(std::move(training)), validation_(std::move(validation)) {}

Model Task::make_model(std::uint64_t seed, bool wide) const {
  static std::mutex mutex;  // there is one generator for all threads
  const std::scoped_lock lock(mutex);
  ::torch::manual_seed(seed);
  auto network = make_network();
  if (wide) network->to(at::kDouble);
  return Model(std::move(network));
}

std::vector<double> Task::training_losses(Network& network) const {
  const at::NoGradGuard no_grad;
  std::vector<double> all;
  all.reserve(examples());
  for (std::int64_t first = 0; first < training_.size(); first += evaluated_at_once()) {
    const Tensor some =
        losses(network, training_.slice(first, evaluated_at_once())).to(at::kDouble).contiguous();
    const auto* values = some.const_data_ptr<double>();
    all.insert(all.end(), values, values + some.numel());
  }
  return all;
}

Metric Task::metric() const {
  Metric metric = plain_metric();
  if (validation_.size() == 0) metric.name = "train_" + metric.name;
  return metric;
}

std::uint64_t Task::fingerprint() const {
  std::uint64_t hash = 0;
  for (const Tensor* t : {&training_.inputs, &training_.targets, &validation_.inputs, &validation_.targets})
    hash = hash_of(*t, hash);
  return hash;
}

std::size_t Task::data_bytes() const {
  return bytes_of(training_.inputs) + bytes_of(training_.targets) + bytes_of(validation_.inputs) +
         bytes_of(validation_.targets);
}

std::shared_ptr<const Task> open_task(std::string_view name, const Source& source, const Sizes& sizes) {
  const TaskInfo& info = find_task(name);
  if (name == "logistic") return open_logistic(info, source);
  if (name == "lenet") return open_lenet(info, source);
  if (name == "mlp") return open_mlp(info, source, sizes);
  if (name == "lstm") return open_lstm(info, source, sizes);
  return open_gpt(info, source, sizes);
}

}  // namespace cdgrab::tasks
