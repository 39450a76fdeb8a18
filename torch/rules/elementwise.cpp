// SPDX-License-Identifier: Apache-2.0
// Parameters that are added, subtracted, multiplied in or divided by, broadcast to the shape of the rest; and
// those that are copied for every example.
#include "rules.hpp"

namespace cdgrab::torch {

Contribution add_rule(const Moment& moment) {
  auto* node = static_cast<nodes::AddBackward0*>(moment.node);
  return broadcast_rows(moment, moment.slot == 0 ? moment.gradient() : moment.gradient() * node->alpha);
}

Contribution sub_rule(const Moment& moment) {
  auto* node = static_cast<nodes::SubBackward0*>(moment.node);
  return broadcast_rows(moment, moment.slot == 0 ? moment.gradient() : moment.gradient() * -node->alpha);
}

Contribution mul_rule(const Moment& moment) {
  auto* node = static_cast<nodes::MulBackward0*>(moment.node);
  const Tensor other = moment.slot == 0 ? saved(node->other_, moment.node) : saved(node->self_, moment.node);
  return broadcast_rows(moment, moment.gradient() * other);
}

Contribution div_rule(const Moment& moment) {
  auto* node = static_cast<nodes::DivBackward0*>(moment.node);
  const Tensor other = saved(node->other_, moment.node);
  if (moment.slot == 0) return broadcast_rows(moment, moment.gradient() / other);
  return broadcast_rows(moment, -moment.gradient() * saved(node->self_, moment.node) / (other * other));
}

Contribution prelu_rule(const Moment& moment) {
  auto* node = static_cast<nodes::PreluKernelBackward0*>(moment.node);
  return broadcast_rows(moment, moment.gradient() * saved(node->self_, moment.node).clamp_max(0));
}

Contribution expand_rule(const Moment& moment) { return broadcast_rows(moment, moment.gradient()); }

Contribution repeat_rule(const Moment& moment) {
  const at::IntArrayRef own = edge_shape(moment.node, moment.slot);
  const std::int64_t rank = moment.gradient().dim();
  // (B, the output's dimensions, without the examples).
  Tensor g = moment.gradient_by_example().movedim(1, moment.layout.dim + 1);
  for (std::int64_t dim = 0; dim < rank; ++dim) {
    const std::int64_t at = dim - (rank - static_cast<std::int64_t>(own.size()));
    const std::int64_t length = at < 0 ? 1 : own[static_cast<std::size_t>(at)];
    g = g.unflatten(dim + 1, {g.size(dim + 1) / length, length}).sum(dim + 1);
  }
  return Contribution::of_rows(g.reshape({moment.batch, -1}));
}

}  // namespace cdgrab::torch
