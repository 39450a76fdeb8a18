// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set; the best is chosen at run time. Tiles of the product stay in registers
// while the positions pass. What they are made of is packed first: a few columns of both, position after
// position, so that those of the right stay in the first cache and those of the left in the second.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transposed_products.cpp"
#include "kernels/transposed_products.hpp"

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kernels/aligned_memory.hpp"

HWY_BEFORE_NAMESPACE();
namespace cdgrab::torch::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;

/// A tile: so many columns of the left by so many vectors of columns of the right, all in registers.
constexpr std::size_t kLeft = HWY_TARGET <= HWY_AVX3 ? 12 : 6;
constexpr std::size_t kVectors = 2;
// Vectors of an unknown number of lanes are disabled above.
constexpr std::size_t kWidth = kVectors * hn::MaxLanes(Tag());
/// Positions at a time, and columns of the left.
constexpr std::size_t kPositions = 256;
constexpr std::size_t kLeftBlock = 40 * kLeft;

/// Columns [begin, end) of positions [from, to) as (panels, positions, kColumns), filled up with zeros.
template <std::size_t kColumns>
void pack(const Strided& matrix, std::size_t from, std::size_t to, std::size_t begin, std::size_t end,
          float* packed) {
  for (std::size_t column = begin; column < end; column += kColumns) {
    const std::size_t columns = std::min(kColumns, end - column);
    const bool whole = columns == kColumns && matrix.column_stride == 1;
    for (std::size_t t = from; t < to; ++t, packed += kColumns) {
      const float* at = matrix.first + t * matrix.row_stride + column * matrix.column_stride;
      if (whole) {  // of a length that the compiler knows
        std::memcpy(packed, at, kColumns * sizeof(float));
        continue;
      }
      for (std::size_t k = 0; k < columns; ++k) packed[k] = at[k * matrix.column_stride];
      std::fill(packed + columns, packed + kColumns, 0.0F);
    }
  }
}

/// Where a tile of a product goes.
struct Tile {
  float* at;
  float* sum;  ///< null: there is none
  std::size_t stride;
  std::size_t rows, columns;  ///< of the tile that are inside
  float alpha;
  bool add;  ///< to what is there
};

/// The same operations for every tile, so that where it is cut rounds nothing differently.
HWY_INLINE void store(const Vec (&products)[kLeft][kVectors], const Tile& to) {
  const Tag d;
  const Vec alpha = hn::Set(d, to.alpha);
  HWY_UNROLL(12)
  for (std::size_t i = 0; i < kLeft; ++i)
    for (std::size_t v = 0; v < kVectors; ++v) {
      const std::size_t offset = i * to.stride + v * hn::Lanes(d);
      const Vec before = to.add ? hn::LoadU(d, to.at + offset) : hn::Zero(d);
      hn::StoreU(hn::MulAdd(products[i][v], alpha, before), d, to.at + offset);
      if (to.sum != nullptr)
        hn::StoreU(hn::MulAdd(products[i][v], alpha, hn::LoadU(d, to.sum + offset)), d, to.sum + offset);
    }
}

/// Over the edge: in copies that have room.
void store_cut(const Vec (&products)[kLeft][kVectors], const Tile& to) {
  HWY_ALIGN float own[kLeft * kWidth] = {};
  HWY_ALIGN float own_sum[kLeft * kWidth] = {};
  for (std::size_t i = 0; i < to.rows; ++i) {
    if (to.add) std::copy_n(to.at + i * to.stride, to.columns, own + i * kWidth);
    if (to.sum != nullptr) std::copy_n(to.sum + i * to.stride, to.columns, own_sum + i * kWidth);
  }
  Tile whole = to;
  whole.at = own;
  whole.sum = to.sum == nullptr ? nullptr : own_sum;
  whole.stride = kWidth;
  store(products, whole);
  for (std::size_t i = 0; i < to.rows; ++i) {
    std::copy_n(own + i * kWidth, to.columns, to.at + i * to.stride);
    if (to.sum != nullptr) std::copy_n(own_sum + i * kWidth, to.columns, to.sum + i * to.stride);
  }
}

HWY_INLINE void multiply_tile(const float* left, const float* right, std::size_t positions, const Tile& to) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  Vec sums[kLeft][kVectors];
  HWY_UNROLL(12)
  for (std::size_t i = 0; i < kLeft; ++i)
    for (std::size_t v = 0; v < kVectors; ++v) sums[i][v] = hn::Zero(d);
  for (std::size_t t = 0; t < positions; ++t, left += kLeft, right += kWidth) {
    Vec by[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) by[v] = hn::Load(d, right + v * lanes);
    HWY_UNROLL(12)
    for (std::size_t i = 0; i < kLeft; ++i) {
      const Vec one = hn::Set(d, left[i]);
      for (std::size_t v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(one, by[v], sums[i][v]);
    }
  }
  if (to.rows < kLeft || to.columns < kWidth) return store_cut(sums, to);
  store(sums, to);
}

std::size_t rounded_up(std::size_t value, std::size_t step) { return (value + step - 1) / step * step; }

/// One product, with room for what is packed.
void multiply(const Strided& left, const Strided& right, float alpha, const ProductTarget& product,
              float* packed_left, float* packed_right) {
  const std::size_t m = left.columns;
  const std::size_t n = right.columns;
  for (std::size_t from = 0; from < left.rows; from += kPositions) {
    const std::size_t to = std::min(from + kPositions, left.rows);
    const std::size_t positions = to - from;
    pack<kWidth>(right, from, to, 0, n, packed_right);
    for (std::size_t begin = 0; begin < m; begin += kLeftBlock) {
      const std::size_t end = std::min(begin + kLeftBlock, m);
      pack<kLeft>(left, from, to, begin, end, packed_left);
      for (std::size_t j = 0; j < n; j += kWidth)
        for (std::size_t i = begin; i < end; i += kLeft) {
          const std::size_t offset = i * n + j;
          multiply_tile(
              packed_left + (i - begin) * positions, packed_right + j * positions, positions,
              {product.first + offset, product.sum == nullptr ? nullptr : product.sum + offset, n,
               std::min(kLeft, end - i), std::min(kWidth, n - j), alpha, product.added || from > 0});
        }
    }
  }
}

}  // namespace

bool is_wide() { return hn::Lanes(Tag()) >= 16; }

void transposed_products(const StridedSeries& left, const StridedSeries& right, float alpha,
                         const ProductTarget& to) {
  const std::size_t positions = std::min(kPositions, left.each.rows);
  const auto packed_left =
      aligned_floats(positions * rounded_up(std::min(kLeftBlock, left.each.columns), kLeft));
  const auto packed_right = aligned_floats(positions * rounded_up(right.each.columns, kWidth));
  for (std::size_t k = 0; k < left.count; ++k) {
    ProductTarget one = to;
    one.first += k * to.stride;
    if (positions == 0 && !to.added) std::fill_n(one.first, left.each.columns * right.each.columns, 0.0F);
    multiply(left.some(k, k + 1).each, right.some(k, k + 1).each, alpha, one, packed_left.get(),
             packed_right.get());
  }
}

}  // namespace cdgrab::torch::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cdgrab::torch::kernels {

HWY_EXPORT(is_wide);
HWY_EXPORT(transposed_products);

bool has_wide_registers() { return HWY_DYNAMIC_DISPATCH(is_wide)(); }

void transposed_products(const StridedSeries& left, const StridedSeries& right, float alpha,
                         const ProductTarget& to) {
  HWY_DYNAMIC_DISPATCH(transposed_products)(left, right, alpha, to);
}

}  // namespace cdgrab::torch::kernels
#endif
