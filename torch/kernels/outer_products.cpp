// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set; the best is chosen at run time. A tile of the matrix stays in registers
// while the vectors pass, so that what is dear to reach, the matrix, is touched once.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/outer_products.cpp"
#include "kernels/outer_products.hpp"

#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace cdgrab::torch::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;

/// A tile of the matrix.
constexpr std::size_t kRows = 6;
constexpr std::size_t kVectors = 2;

HWY_INLINE std::size_t tile_columns() { return kVectors * hn::Lanes(Tag()); }

/// The two factors as the tiles read them: (count, kRows), and for every tile's columns (count, columns).
struct Packed {
  const float* left;
  const float* right;
};

/// sums += of vectors [from, to).
HWY_INLINE void add_up(const Packed& packed, std::size_t from, std::size_t to, Vec (&sums)[kRows][kVectors]) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t k = from; k < to; ++k) {
    Vec right[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v)
      right[v] = hn::LoadU(d, packed.right + (k * kVectors + v) * lanes);
    HWY_UNROLL(6)
    for (std::size_t i = 0; i < kRows; ++i) {
      const Vec left = hn::Set(d, packed.left[k * kRows + i]);
      for (std::size_t v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(left, right[v], sums[i][v]);
    }
  }
}

/// visit(row, the vector's place in it) for all of a tile.
template <class Visit>
HWY_INLINE void each(std::size_t stride, Visit visit) {
  for (std::size_t i = 0; i < kRows; ++i)
    for (std::size_t v = 0; v < kVectors; ++v) visit(i, v, i * stride + v * hn::Lanes(Tag()));
}

template <bool kKnown, class Sum>
HWY_INLINE void add_tile(const Packed& packed, const Weighted& which, Sum* sum, float* to,
                         std::size_t stride) {
  const Tag d;
  Vec sums[kRows][kVectors];
  for (std::size_t i = 0; i < kRows; ++i)
    for (std::size_t v = 0; v < kVectors; ++v) sums[i][v] = hn::Zero(d);
  const Vec weight = hn::Set(d, which.weight);
  const Vec common = hn::Set(d, which.common);
  // Of the next tile to the right; beyond the end of the last row it does no harm.
  each(stride, [&](std::size_t, std::size_t, std::size_t at) HWY_ATTR {
    hwy::Prefetch(to + at + tile_columns());
    hwy::Prefetch(sum + at + tile_columns());
  });
  add_up(packed, 0, which.first, sums);
  if constexpr (kKnown) {
    each(stride, [&](std::size_t i, std::size_t v, std::size_t at) HWY_ATTR {
      const Vec with_first = hn::MulAdd(weight, sums[i][v], hn::LoadU(d, to + at));
      hn::StoreU(hn::MulAdd(common, hn::LoadU(d, sum + at), with_first), d, to + at);
    });
  } else {
    each(stride, [&](std::size_t i, std::size_t v, std::size_t at) HWY_ATTR {
      hn::StoreU(hn::MulAdd(weight, sums[i][v], hn::LoadU(d, to + at)), d, to + at);
    });
    add_up(packed, which.first, which.count, sums);
    each(stride, [&](std::size_t i, std::size_t v, std::size_t at) HWY_ATTR {
      hn::StoreU(sums[i][v], d, sum + at);
      hn::StoreU(hn::MulAdd(common, sums[i][v], hn::LoadU(d, to + at)), d, to + at);
    });
  }
}

/// A tile over the edge: done in a copy that has room.
template <bool kKnown, class Sum>
void add_cut_tile(const Packed& packed, const Weighted& which, std::size_t rows, std::size_t columns,
                  Sum* sum, float* to, std::size_t stride) {
  const std::size_t wide = tile_columns();
  std::vector<float> room(4 * kRows * wide);  // the prefetches' too
  float* own_to = room.data();
  float* own_sum = room.data() + 2 * kRows * wide;
  for (std::size_t i = 0; i < rows; ++i) {
    std::copy_n(to + i * stride, columns, own_to + i * wide);
    if constexpr (kKnown) std::copy_n(sum + i * stride, columns, own_sum + i * wide);
  }
  add_tile<kKnown>(packed, which, own_sum, own_to, wide);
  for (std::size_t i = 0; i < rows; ++i) {
    std::copy_n(own_to + i * wide, columns, to + i * stride);
    if constexpr (!kKnown) std::copy_n(own_sum + i * wide, columns, sum + i * stride);
  }
}

std::vector<float> packed_right(const OuterProducts& all, const Weighted& which, std::size_t count) {
  const std::size_t wide = tile_columns();
  std::vector<float> packed(count * ((all.n + wide - 1) / wide * wide));
  for (std::size_t j = 0; j < all.n; j += wide)
    for (std::size_t k = 0; k < count; ++k)
      std::copy_n(all.right + which.order[k] * all.n + j, std::min(wide, all.n - j),
                  packed.data() + j * count + k * wide);
  return packed;
}

/// Row by row of tiles, so that memory is read in its order.
template <bool kKnown, class Sum>
void add(const OuterProducts& all, const Weighted& which, std::size_t begin, std::size_t end, Sum* sum,
         float* to) {
  const std::size_t count = kKnown ? which.first : which.count;
  const std::size_t wide = tile_columns();
  const std::vector<float> right = packed_right(all, which, count);
  std::vector<float> left(count * kRows);
  for (std::size_t row = begin; row < end; row += kRows) {
    const std::size_t rows = std::min(kRows, end - row);
    for (std::size_t k = 0; k < count; ++k)
      std::copy_n(all.left + which.order[k] * all.m + row, rows, left.data() + k * kRows);
    for (std::size_t j = 0; j < all.n; j += wide) {
      const Packed packed{left.data(), right.data() + j * count};
      const std::size_t columns = std::min(wide, all.n - j);
      const std::size_t at = row * all.n + j;
      if (rows == kRows && columns == wide)
        add_tile<kKnown>(packed, which, sum + at, to + at, all.n);
      else
        add_cut_tile<kKnown>(packed, which, rows, columns, sum + at, to + at, all.n);
    }
  }
}

}  // namespace

void form(const OuterProducts& all, std::size_t begin, std::size_t end, float alpha, float* rows) {
  const Tag d;
  const std::size_t whole = all.n - all.n % hn::Lanes(d);
  for (std::size_t k = begin; k < end; ++k)
    for (std::size_t i = 0; i < all.m; ++i) {
      const float left = alpha * all.left[k * all.m + i];
      const float* right = all.right + k * all.n;
      float* to = rows + (k * all.m + i) * all.n;
      for (std::size_t j = 0; j < whole; j += hn::Lanes(d))
        hn::StoreU(hn::MulAdd(hn::Set(d, left), hn::LoadU(d, right + j), hn::Zero(d)), d, to + j);
      for (std::size_t j = whole; j < all.n; ++j) to[j] = left * right[j] + 0.0F;
    }
}

void add_with_sum(const OuterProducts& all, const Weighted& which, std::size_t begin, std::size_t end,
                  float* sum, float* to) {
  add<false>(all, which, begin, end, sum, to);
}

void add_by_sum(const OuterProducts& all, const Weighted& which, std::size_t begin, std::size_t end,
                const float* sum, float* to) {
  add<true>(all, which, begin, end, sum, to);
}

}  // namespace cdgrab::torch::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cdgrab::torch::kernels {

HWY_EXPORT(form);
HWY_EXPORT(add_with_sum);
HWY_EXPORT(add_by_sum);

void form(const OuterProducts& all, std::size_t begin, std::size_t end, float alpha, float* rows) {
  HWY_DYNAMIC_DISPATCH(form)(all, begin, end, alpha, rows);
}

void add_with_sum(const OuterProducts& all, const Weighted& which, std::size_t begin, std::size_t end,
                  float* sum, float* to) {
  HWY_DYNAMIC_DISPATCH(add_with_sum)(all, which, begin, end, sum, to);
}

void add_by_sum(const OuterProducts& all, const Weighted& which, std::size_t begin, std::size_t end,
                const float* sum, float* to) {
  HWY_DYNAMIC_DISPATCH(add_by_sum)(all, which, begin, end, sum, to);
}

}  // namespace cdgrab::torch::kernels
#endif
