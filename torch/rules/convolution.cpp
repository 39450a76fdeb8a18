// SPDX-License-Identifier: Apache-2.0
// Convolutions, of any number of dimensions: unfolded, they are matrix products over the positions.

#include "kernels/convolution.hpp"

#include <ATen/Parallel.h>

#include <algorithm>

#include "rules.hpp"

namespace cdgrab::torch {
namespace {

/// What unfolding needs to know of a node, which is gone when it is done.
struct Window {
  std::vector<std::int64_t> kernel, output, stride, padding, dilation;
};

/// One per spatial dimension; a single value stands for all of them.
std::vector<std::int64_t> numbers(const std::vector<c10::SymInt>& values, std::size_t dims) {
  std::vector<std::int64_t> all;
  for (std::size_t d = 0; d < dims; ++d) all.push_back(values[values.size() == 1 ? 0 : d].expect_int());
  return all;
}

/// (B, inputs, spatial..) -> (B, inputs * kernel, positions): one strided copy, several times faster than
/// at::im2col.
Tensor unfold(const Tensor& input, const Window& window) {
  const std::size_t dims = window.kernel.size();
  std::vector<std::int64_t> padding;
  for (std::size_t d = dims; d-- > 0;) padding.insert(padding.end(), 2, window.padding[d]);
  const bool padded = std::any_of(padding.begin(), padding.end(), [](std::int64_t p) { return p != 0; });
  const Tensor x = (padded ? at::constant_pad_nd(input, padding) : input).contiguous();
  std::vector<std::int64_t> sizes = {x.size(0), x.size(1)};
  std::vector<std::int64_t> strides = {x.stride(0), x.stride(1)};
  for (std::size_t d = 0; d < dims; ++d) {
    sizes.push_back(window.kernel[d]);
    strides.push_back(x.stride(static_cast<std::int64_t>(d) + 2) * window.dilation[d]);
  }
  for (std::size_t d = 0; d < dims; ++d) {
    sizes.push_back(window.output[d]);
    strides.push_back(x.stride(static_cast<std::int64_t>(d) + 2) * window.stride[d]);
  }
  return x.as_strided(sizes, strides).reshape({x.size(0), -1, c10::multiply_integers(window.output)});
}

/// Whether a convolution of the input has all of its outputs in the window; the padding of a transposed one's
/// output may add more.
bool is_whole(const Tensor& input, const Window& window) {
  for (std::size_t d = 0; d < window.kernel.size(); ++d) {
    const std::int64_t reach = input.size(static_cast<std::int64_t>(d) + 2) + 2 * window.padding[d] -
                               window.dilation[d] * (window.kernel[d] - 1) - 1;
    if (reach / window.stride[d] + 1 != window.output[d]) return false;
  }
  return true;
}

std::vector<std::int64_t> with_spatial(std::int64_t first, std::int64_t second,
                                       const std::vector<std::int64_t>& spatial) {
  std::vector<std::int64_t> shape = {first, second};
  shape.insert(shape.end(), spatial.begin(), spatial.end());
  return shape;
}

/// (B, inputs, spatial..) and (inputs * kernel, r) -> (B, positions, r): a convolution with r filters.
Tensor convolve(const Tensor& input, const Tensor& matrix, const Window& window) {
  const Tensor filters = matrix.t().reshape(with_spatial(matrix.size(1), input.size(1), window.kernel));
  return at::convolution(input.to(matrix.scalar_type()), filters, {}, window.stride, window.padding,
                         window.dilation, false, std::vector<std::int64_t>(window.kernel.size()), 1)
      .flatten(2)
      .transpose(1, 2);
}

/// (B, inputs, spatial..) and (B, positions, r) -> (inputs * kernel, r): what such filters' gradient is.
Tensor filter_gradient(const Tensor& input, const Tensor& weights, const Window& window) {
  const Tensor x = input.to(weights.scalar_type());
  const std::int64_t size = weights.size(2);
  const Tensor filters = at::empty(with_spatial(size, x.size(1), window.kernel), x.options());
  const Tensor g = weights.transpose(1, 2).reshape(with_spatial(x.size(0), size, window.output));
  const Tensor gradient = std::get<1>(at::convolution_backward(
      g, x, filters, at::OptionalIntArrayRef(), window.stride, window.padding, window.dilation, false,
      std::vector<std::int64_t>(window.kernel.size()), 1, {false, true, false}));
  return gradient.reshape({size, -1}).t();
}

/// With fewer positions than these, writing a gradient takes longer than adding it up (bench/observe).
constexpr std::int64_t kFewPositions = 32;

/// What the kernel has to know; nothing if it does not cover this convolution, or others do better.
std::optional<kernels::Convolution> covered(const Tensor& seen, const Tensor& placed, const Window& window) {
  const bool plain = window.dilation == std::vector<std::int64_t>{1, 1};  // and of two dimensions
  if (!plain || !seen.is_cpu()) return std::nullopt;
  const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  const kernels::Convolution shape{.inputs = size(seen.size(1)),
                                   .height = size(seen.size(2)),
                                   .width = size(seen.size(3)),
                                   .outputs = size(placed.size(1)),
                                   .out_height = size(placed.size(2)),
                                   .out_width = size(placed.size(3)),
                                   .kernel_height = size(window.kernel[0]),
                                   .kernel_width = size(window.kernel[1]),
                                   .stride_height = size(window.stride[0]),
                                   .stride_width = size(window.stride[1]),
                                   .padding_height = size(window.padding[0]),
                                   .padding_width = size(window.padding[1])};
  if (!kernels::has_filter_gradients(shape.kernel_width) || size(kFewPositions) > shape.positions())
    return std::nullopt;
  return shape;
}

/// Factors::form for examples of this shape; of as many outputs as the left factor has.
void form(kernels::Convolution shape, const Tensor& left, const Tensor& right, double alpha,
          const Tensor& rows) {
  shape.outputs = static_cast<std::size_t>(left.size(2));
  const Tensor outputs = left.transpose(1, 2).contiguous();
  const Tensor inputs = right.to(outputs.scalar_type()).contiguous();
  const auto* g = outputs.const_data_ptr<float>();
  const auto* x = inputs.const_data_ptr<float>();
  auto* to = rows.mutable_data_ptr<float>();
  at::parallel_for(0, rows.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    const auto first = static_cast<std::size_t>(begin);
    kernels::filter_gradients(shape, static_cast<std::size_t>(end - begin),
                              x + first * shape.inputs * shape.height * shape.width,
                              g + first * shape.outputs * shape.positions(), static_cast<float>(alpha),
                              to + first * shape.outputs * shape.filter());
  });
}

}  // namespace

/// What is unfolded is kept as it is: unfolded it is as many times larger as the kernel has entries. In a
/// transposed convolution input and output have changed places.
Contribution convolution_rule(const Moment& moment) {
  auto* node = static_cast<nodes::ConvolutionBackward0*>(moment.node);
  const Tensor g = moment.gradient();
  if (moment.slot == 2) return rows_of_examples(moment, g.flatten(2).sum(2));
  const Tensor input = saved(node->input_, moment.node);
  const Tensor& seen = node->transposed ? g : input;
  const Tensor& placed = node->transposed ? input : g;
  const auto shape = edge_shape(moment.node, 1);
  const std::size_t dims = shape.size() - 2;
  const Window window{shape.slice(2).vec(), placed.sizes().slice(2).vec(), numbers(node->stride, dims),
                      numbers(node->padding, dims), numbers(node->dilation, dims)};
  const std::int64_t groups = node->groups.expect_int();
  const std::int64_t b = g.size(0);
  if (groups == 1) {
    Factors factors =
        Factors::of_expanded(placed.flatten(2).transpose(1, 2), seen, c10::multiply_integers(shape.slice(1)),
                             [window](const Tensor& x) { return unfold(x, window).transpose(1, 2); });
    if (is_whole(seen, window)) {
      factors.project = [window](const Tensor& x, const Tensor& m) { return convolve(x, m, window); };
      factors.pull = [window](const Tensor& x, const Tensor& w) { return filter_gradient(x, w, window); };
    }
    if (const auto kernel = covered(seen, placed, window))
      factors.form = [shape = *kernel](const Tensor& l, const Tensor& r, double alpha, const Tensor& rows) {
        form(shape, l, r, alpha, rows);
      };
    auto contribution = Contribution::of_factors(std::move(factors));
    if (moment.layout == Layout{0, 1} && b == moment.batch) return contribution;
    return rows_of_examples(moment, contribution.rows());
  }
  const Tensor columns = unfold(seen, window);
  const Tensor by_group = placed.reshape({b * groups, placed.size(1) / groups, -1});
  const Tensor columns_by_group = columns.reshape({b * groups, columns.size(1) / groups, -1});
  return rows_of_examples(moment, at::bmm(by_group, columns_by_group.transpose(1, 2)).reshape({b, -1}));
}

}  // namespace cdgrab::torch
