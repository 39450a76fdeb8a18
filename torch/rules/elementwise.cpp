// SPDX-License-Identifier: Apache-2.0
// Parameters that are added, subtracted, multiplied in or divided by, broadcast to the shape of the rest.
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

}  // namespace cdgrab::torch
