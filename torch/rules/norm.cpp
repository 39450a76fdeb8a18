// SPDX-License-Identifier: Apache-2.0
// Normalisations: the weight's gradient is the output's times the normalised input, the bias's the output's.
#include "rules.hpp"

namespace cdgrab::torch {
namespace {

/// Rows of a parameter with one entry per channel (dimension 1).
Contribution per_channel(const Moment& moment, const Tensor& gradient) {
  return rows_of_examples(moment, gradient.dim() > 2 ? gradient.flatten(2).sum(2) : gradient);
}

/// (1, C, 1, ..): one number per channel, against a tensor like x.
Tensor channels(const Tensor& values, const Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

}  // namespace

Contribution layer_norm_rule(const Moment& moment) {
  if (moment.slot == 2) return broadcast_rows(moment, moment.gradient());
  auto* node = static_cast<nodes::NativeLayerNormBackward0*>(moment.node);
  const Tensor x = saved(node->input_, moment.node);
  const Tensor mean = saved(node->result1_, moment.node);
  const Tensor rstd = saved(node->result2_, moment.node);
  return broadcast_rows(moment, (x - mean) * rstd * moment.gradient());
}

Contribution rms_norm_rule(const Moment& moment) {
  auto* node = static_cast<nodes::FusedRmsNormBackward0*>(moment.node);
  return broadcast_rows(
      moment, saved(node->input_, moment.node) * saved(node->result1_, moment.node) * moment.gradient());
}

Contribution group_norm_rule(const Moment& moment) {
  if (moment.slot == 2) return per_channel(moment, moment.gradient());
  auto* node = static_cast<nodes::NativeGroupNormBackward0*>(moment.node);
  const Tensor x = saved(node->input_, moment.node);
  const Tensor groups = x.reshape({x.size(0), node->group, -1});
  const Tensor mean = saved(node->result1_, moment.node).view({x.size(0), node->group, 1});
  const Tensor rstd = saved(node->result2_, moment.node).view({x.size(0), node->group, 1});
  return per_channel(moment, ((groups - mean) * rstd).view(x.sizes()) * moment.gradient());
}

/// Each example's share of the batch's gradient (docs/math.md, section 6): the shares add up to it.
Contribution batch_norm_rule(const Moment& moment) {
  if (moment.slot == 2) return per_channel(moment, moment.gradient());
  auto* node = static_cast<nodes::NativeBatchNormBackward0*>(moment.node);
  const Tensor x = saved(node->input_, moment.node);
  const Tensor mean =
      node->training ? saved(node->result1_, moment.node) : saved(node->running_mean_, moment.node);
  const Tensor rstd = node->training ? saved(node->result2_, moment.node)
                                     : at::rsqrt(saved(node->running_var_, moment.node) + node->eps);
  return per_channel(moment, (x - channels(mean, x)) * channels(rstd, x) * moment.gradient());
}

}  // namespace cdgrab::torch
