// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set; the best is chosen at run time. Lanes are the map's columns, and some
// rows pass at once, each with its sum in a register.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/projection.cpp"
#include "kernels/projection.hpp"

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace cdgrab::torch::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// As many sums as two multiply-adds a cycle, four cycles each, keep busy.
constexpr std::size_t kRows = 8;

/// sums (kCount, lanes) of rows from `row` on, with the lanes of `map` (columns, lanes).
template <std::size_t kCount, class D>
void add_up(D d, const Strided& matrix, std::size_t row, const float* map, float* sums) {
  hn::Vec<D> sum[kCount];
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kCount; ++i) sum[i] = hn::Zero(d);
  const float* at[kCount];
  for (std::size_t i = 0; i < kCount; ++i) at[i] = matrix.first + (row + i) * matrix.row_stride;
  for (std::size_t k = 0; k < matrix.columns; ++k) {
    const auto weights = hn::LoadU(d, map + k * hn::Lanes(d));
    HWY_UNROLL(8)
    for (std::size_t i = 0; i < kCount; ++i)
      sum[i] = hn::MulAdd(weights, hn::Set(d, at[i][k * matrix.column_stride]), sum[i]);
  }
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kCount; ++i) hn::StoreU(sum[i], d, sums + i * hn::Lanes(d));
}

template <class D>
void with_lanes(D d, const Strided& matrix, const float* map, std::size_t size, float* out) {
  const std::size_t lanes = hn::Lanes(d);
  std::vector<float> some(size == lanes ? 0 : matrix.columns * lanes);
  std::vector<float> sums(kRows * lanes);
  for (std::size_t begin = 0; begin < size; begin += lanes) {
    const std::size_t count = std::min(lanes, size - begin);
    for (std::size_t k = 0; k < matrix.columns && size != lanes; ++k)
      std::copy_n(map + k * size + begin, count, some.data() + k * lanes);
    const float* by = size == lanes ? map : some.data();
    for (std::size_t row = 0; row < matrix.rows;) {
      const std::size_t rows = matrix.rows - row >= kRows ? kRows : 1;
      if (rows == kRows)
        add_up<kRows>(d, matrix, row, by, sums.data());
      else
        add_up<1>(d, matrix, row, by, sums.data());
      for (std::size_t i = 0; i < rows; ++i)
        std::copy_n(sums.data() + i * lanes, count, out + (row + i) * size + begin);
      row += rows;
    }
  }
}

}  // namespace

void project(const Strided& matrix, const float* map, std::size_t size, float* out) {
  if (size <= 8)
    with_lanes(hn::CappedTag<float, 8>(), matrix, map, size, out);
  else
    with_lanes(hn::ScalableTag<float>(), matrix, map, size, out);
}

}  // namespace cdgrab::torch::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cdgrab::torch::kernels {

HWY_EXPORT(project);

void project(const Strided& matrix, const float* map, std::size_t size, float* out) {
  HWY_DYNAMIC_DISPATCH(project)(matrix, map, size, out);
}

}  // namespace cdgrab::torch::kernels
#endif
