// SPDX-License-Identifier: Apache-2.0
#include "tasks/classifier.hpp"

namespace cdgrab::tasks {

Tensor Classifier::loss(Network& network, const Examples& batch) const {
  return at::cross_entropy_loss(network.forward(batch.inputs), batch.targets);
}

Tensor Classifier::losses(Network& network, const Examples& batch) const {
  return at::cross_entropy_loss(network.forward(batch.inputs), batch.targets, {}, at::Reduction::None);
}

double Classifier::measure(Network& network) const {
  const double right = sum_over(judged(), [&](const Examples& batch) {
    return predicted(network.forward(batch.inputs)).eq(batch.targets).sum();
  });
  return right / static_cast<double>(judged().size());
}

std::vector<std::int64_t> Classifier::labels() const {
  const Tensor classes = training().targets.reshape({-1}).to(at::kLong).contiguous();
  const auto* first = classes.const_data_ptr<std::int64_t>();
  return {first, first + classes.numel()};
}

}  // namespace cdgrab::tasks
