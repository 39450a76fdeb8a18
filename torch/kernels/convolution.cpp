// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set; the best is chosen at run time. Lanes are output channels: at every
// position their gradients are multiplied by each number of the window, which stays in place, and the sums
// of a filter's rows stay in registers while the positions pass.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convolution.cpp"
#include "kernels/convolution.hpp"

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace cdgrab::torch::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Sums that fit into the registers beside what they are made of.
constexpr std::size_t kMaxSums = HWY_TARGET <= HWY_AVX3 ? 25 : 12;

/// One input channel with its padding, and the output gradients with channels last.
struct Planes {
  const float* input;    ///< (.., row)
  std::size_t row;       ///< numbers of a padded row
  const float* outputs;  ///< (positions, channels)
  std::size_t channels;  ///< a multiple of the lanes
};

/// sums (kRows * kWidth, lanes) of the lanes at `channel` with the filter's rows from `first` on.
template <std::size_t kRows, std::size_t kWidth, class D>
void add_up(D d, const Convolution& shape, const Planes& planes, std::size_t channel, std::size_t first,
            float* sums) {
  hn::Vec<D> sum[kRows * kWidth];
  HWY_UNROLL(25)
  for (std::size_t k = 0; k < kRows * kWidth; ++k) sum[k] = hn::Zero(d);
  const float* out = planes.outputs + channel;
  for (std::size_t y = 0; y < shape.out_height; ++y) {
    const float* in[kRows];
    for (std::size_t r = 0; r < kRows; ++r)
      in[r] = planes.input + (y * shape.stride_height + first + r) * planes.row;
    for (std::size_t x = 0; x < shape.out_width; ++x) {
      const auto g = hn::LoadU(d, out + x * planes.channels);
      HWY_UNROLL(5)
      for (std::size_t r = 0; r < kRows; ++r) {
        const float* at = in[r] + x * shape.stride_width;
        HWY_UNROLL(7)
        for (std::size_t c = 0; c < kWidth; ++c)
          sum[r * kWidth + c] = hn::MulAdd(g, hn::Set(d, at[c]), sum[r * kWidth + c]);
      }
    }
    out += shape.out_width * planes.channels;
  }
  HWY_UNROLL(25)
  for (std::size_t k = 0; k < kRows * kWidth; ++k) hn::StoreU(sum[k], d, sums + k * hn::Lanes(d));
}

/// The rows of a filter from `first` on that are added up together.
template <std::size_t kWidth, class D>
std::size_t add_up_some(D d, const Convolution& shape, const Planes& planes, std::size_t channel,
                        std::size_t first, float* sums) {
  const std::size_t left = shape.kernel_height - first;
  if constexpr (5 * kWidth <= kMaxSums)
    if (left >= 5) return add_up<5, kWidth>(d, shape, planes, channel, first, sums), 5;
  if constexpr (3 * kWidth <= kMaxSums)
    if (left >= 3) return add_up<3, kWidth>(d, shape, planes, channel, first, sums), 3;
  if constexpr (2 * kWidth <= kMaxSums)
    if (left >= 2) return add_up<2, kWidth>(d, shape, planes, channel, first, sums), 2;
  add_up<1, kWidth>(d, shape, planes, channel, first, sums);
  return 1;
}

void put_channels_last(const Convolution& shape, std::size_t channels, const float* outputs, float alpha,
                       float* last) {
  constexpr std::size_t kTile = 16;  // positions whose channels stay in the cache
  const std::size_t positions = shape.positions();
  for (std::size_t begin = 0; begin < positions; begin += kTile) {
    const std::size_t end = std::min(begin + kTile, positions);
    for (std::size_t o = 0; o < shape.outputs; ++o)
      for (std::size_t t = begin; t < end; ++t) last[t * channels + o] = alpha * outputs[o * positions + t];
  }
}

template <std::size_t kWidth, class D>
void with_width(D d, const Convolution& shape, std::size_t batch, const float* inputs, const float* outputs,
                float alpha, float* gradients) {
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t channels = (shape.outputs + lanes - 1) / lanes * lanes;
  const std::size_t row = shape.width + 2 * shape.padding_width;
  const std::size_t plane = shape.height * shape.width;
  const std::size_t filter = shape.filter();
  const bool padded = shape.padding_height + shape.padding_width > 0;
  std::vector<float> last(shape.positions() * channels);
  std::vector<float> with_padding(padded ? (shape.height + 2 * shape.padding_height) * row : 0);
  std::vector<float> sums(kMaxSums * lanes);
  for (std::size_t b = 0; b < batch; ++b) {
    put_channels_last(shape, channels, outputs + b * shape.outputs * shape.positions(), alpha, last.data());
    for (std::size_t i = 0; i < shape.inputs; ++i) {
      const float* input = inputs + (b * shape.inputs + i) * plane;
      if (padded) {
        float* to = with_padding.data() + shape.padding_height * row + shape.padding_width;
        for (std::size_t y = 0; y < shape.height; ++y)
          std::copy_n(input + y * shape.width, shape.width, to + y * row);
        input = with_padding.data();
      }
      const Planes planes{input, row, last.data(), channels};
      for (std::size_t channel = 0; channel < shape.outputs; channel += lanes) {
        const std::size_t count = std::min(lanes, shape.outputs - channel);
        for (std::size_t first = 0; first < shape.kernel_height;) {
          const std::size_t rows = add_up_some<kWidth>(d, shape, planes, channel, first, sums.data());
          float* to =
              gradients + (b * shape.outputs + channel) * filter + (i * shape.kernel_height + first) * kWidth;
          for (std::size_t o = 0; o < count; ++o)
            for (std::size_t k = 0; k < rows * kWidth; ++k) to[o * filter + k] = sums[k * lanes + o];
          first += rows;
        }
      }
    }
  }
}

template <class D>
void with_lanes(D d, const Convolution& shape, std::size_t batch, const float* inputs, const float* outputs,
                float alpha, float* gradients) {
  if (shape.kernel_width == 3) return with_width<3>(d, shape, batch, inputs, outputs, alpha, gradients);
  if (shape.kernel_width == 5) return with_width<5>(d, shape, batch, inputs, outputs, alpha, gradients);
  with_width<7>(d, shape, batch, inputs, outputs, alpha, gradients);
}

}  // namespace

void filter_gradients(const Convolution& shape, std::size_t batch, const float* inputs, const float* outputs,
                      float alpha, float* gradients) {
  // No more lanes than there are channels for, if fewer do.
  if (shape.outputs <= 8)
    with_lanes(hn::CappedTag<float, 8>(), shape, batch, inputs, outputs, alpha, gradients);
  else
    with_lanes(hn::ScalableTag<float>(), shape, batch, inputs, outputs, alpha, gradients);
}

}  // namespace cdgrab::torch::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cdgrab::torch::kernels {

HWY_EXPORT(filter_gradients);

bool has_filter_gradients(std::size_t kernel_width) {
  return kernel_width == 3 || kernel_width == 5 || kernel_width == 7;
}

void filter_gradients(const Convolution& shape, std::size_t batch, const float* inputs, const float* outputs,
                      float alpha, float* gradients) {
  HWY_DYNAMIC_DISPATCH(filter_gradients)(shape, batch, inputs, outputs, alpha, gradients);
}

}  // namespace cdgrab::torch::kernels
#endif
