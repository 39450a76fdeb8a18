// SPDX-License-Identifier: Apache-2.0
// Gradients of a convolution's filters, example by example, without the unfolded input that matrix products
// would need.
#pragma once

#include <cstddef>

namespace cdgrab::torch::kernels {

/// A convolution of two dimensions, without dilation and groups: (inputs, height, width) -> (outputs,
/// out_height, out_width).
struct Convolution {
  std::size_t inputs, height, width;
  std::size_t outputs, out_height, out_width;
  std::size_t kernel_height, kernel_width;
  std::size_t stride_height, stride_width;
  std::size_t padding_height, padding_width;

  [[nodiscard]] std::size_t positions() const { return out_height * out_width; }
  [[nodiscard]] std::size_t filter() const { return inputs * kernel_height * kernel_width; }
};

/// Whether there is a kernel of this width.
bool has_filter_gradients(std::size_t kernel_width);

/// gradients[b][o][f] = alpha * sum over positions t of outputs[b][o][t] * (what filter entry f sees of
/// inputs[b] at t), for `batch` examples; all are contiguous.
void filter_gradients(const Convolution& shape, std::size_t batch, const float* inputs, const float* outputs,
                      float alpha, float* gradients);

}  // namespace cdgrab::torch::kernels
