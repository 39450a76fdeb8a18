// SPDX-License-Identifier: Apache-2.0
// Convolutions, of any number of dimensions: unfolded, they are matrix products over the positions.

#include <algorithm>

#include "cdgrab/error.hpp"
#include "rules.hpp"

namespace cdgrab::torch {
namespace {

std::int64_t number(const std::vector<c10::SymInt>& values, std::size_t i) { return values[i].expect_int(); }

/// (B, inputs * kernel, positions): one strided copy, several times faster than at::im2col.
Tensor unfold(const Tensor& input, const nodes::ConvolutionBackward0& node, at::IntArrayRef kernel,
              at::IntArrayRef output) {
  const std::size_t dims = kernel.size();
  std::vector<std::int64_t> padding;
  for (std::size_t d = dims; d-- > 0;) padding.insert(padding.end(), 2, number(node.padding, d));
  const bool padded = std::any_of(padding.begin(), padding.end(), [](std::int64_t p) { return p != 0; });
  const Tensor x = (padded ? at::constant_pad_nd(input, padding) : input).contiguous();
  std::vector<std::int64_t> sizes = {x.size(0), x.size(1)};
  std::vector<std::int64_t> strides = {x.stride(0), x.stride(1)};
  for (std::size_t d = 0; d < dims; ++d) {
    sizes.push_back(kernel[d]);
    strides.push_back(x.stride(static_cast<std::int64_t>(d) + 2) * number(node.dilation, d));
  }
  std::int64_t positions = 1;
  for (std::size_t d = 0; d < dims; ++d) {
    sizes.push_back(output[d]);
    strides.push_back(x.stride(static_cast<std::int64_t>(d) + 2) * number(node.stride, d));
    positions *= output[d];
  }
  return x.as_strided(sizes, strides).reshape({x.size(0), -1, positions});
}

}  // namespace

Contribution convolution_rule(const Moment& moment) {
  const auto* node = static_cast<nodes::ConvolutionBackward0*>(moment.node);
  const Tensor g = moment.gradient();
  if (node->transposed)
    throw UserError("observe",
                    "no rule covers: ConvolutionBackward0 of a transposed convolution. Leave its parameters "
                    "out with a selection, or give the vectors themselves to observe_gradients");
  if (moment.slot == 2) return Contribution::of_rows(g.flatten(2).sum(2));
  const Tensor weight = saved(node->weight_, moment.node);
  const Tensor columns =
      unfold(saved(node->input_, moment.node), *node, weight.sizes().slice(2), g.sizes().slice(2));
  const std::int64_t groups = node->groups.expect_int();
  const std::int64_t b = g.size(0);
  if (groups == 1) return Contribution::of_factors(g.flatten(2).transpose(1, 2), columns.transpose(1, 2));
  const Tensor by_group = g.reshape({b * groups, g.size(1) / groups, -1});
  const Tensor columns_by_group = columns.reshape({b * groups, columns.size(1) / groups, -1});
  return Contribution::of_rows(at::bmm(by_group, columns_by_group.transpose(1, 2)).reshape({b, -1}));
}

}  // namespace cdgrab::torch
