// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set; the best is chosen at run time. Some columns at a time, whose right
// vectors stay in the first cache; there row by row of the matrix, which is dear to reach and touched once:
// its numbers stay in registers while the examples pass that have an entry there.
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
#include <cstdint>
#include <vector>

#include "kernels/aligned_memory.hpp"

HWY_BEFORE_NAMESPACE();
namespace cdgrab::torch::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Vec = hn::Vec<Tag>;

/// Of a row, at a time.
constexpr std::size_t kVectors = 8;
/// Rows whose products are added up in float32.
constexpr std::size_t kRows = 64;

HWY_INLINE std::size_t block_columns() { return kVectors * hn::Lanes(Tag()); }

/// An entry of a left vector that is not zero.
struct Entry {
  float left;
  std::uint32_t k;  ///< of the vector, among those that are packed
};

/// Entries by row of the matrix, each row's in the order of the vectors.
struct Entries {
  std::vector<Entry> all;
  std::vector<std::size_t> ends;           ///< per row: the first of the next
  std::vector<std::size_t> ends_of_first;  ///< the first that is not among the first vectors
};

/// Of rows [begin, end), for the vectors at order[0 .. count); some rows at a time, a cache line of each
/// vector.
Entries entries_of(const OuterProducts& all, const std::size_t* order, std::size_t first, std::size_t count,
                   std::size_t begin, std::size_t end) {
  constexpr std::size_t kLine = 16;
  Entries entries;
  entries.all.resize((end - begin) * count + 1);
  Entry* next = entries.all.data();
  std::vector<float> some(count * kLine);
  for (std::size_t row = begin; row < end; row += kLine) {
    const std::size_t rows = std::min(kLine, end - row);
    for (std::size_t k = 0; k < count; ++k)
      std::copy_n(all.left + order[k] * all.m + row, rows, some.data() + k * kLine);
    for (std::size_t i = 0; i < rows; ++i) {
      const auto take = [&](std::size_t from, std::size_t to) {
        for (std::size_t k = from; k < to; ++k) {  // without a branch, which could not be foreseen
          *next = {some[k * kLine + i], static_cast<std::uint32_t>(k)};
          next += next->left != 0.0F ? 1 : 0;
        }
        return static_cast<std::size_t>(next - entries.all.data());
      };
      entries.ends_of_first.push_back(take(0, std::min(first, count)));
      entries.ends.push_back(take(std::min(first, count), count));
    }
  }
  return entries;
}

/// (count, block): columns from `column` on of the right vectors, filled up with zeros.
void pack(const OuterProducts& all, const std::size_t* order, std::size_t count, std::size_t column,
          float* packed) {
  const std::size_t block = block_columns();
  const std::size_t columns = std::min(block, all.n - column);
  for (std::size_t k = 0; k < count; ++k) {
    std::copy_n(all.right + order[k] * all.n + column, columns, packed + k * block);
    std::fill(packed + k * block + columns, packed + (k + 1) * block, 0.0F);
  }
}

/// sums += left * right, of entries [at, end).
HWY_INLINE void add_up(const Entry* at, const Entry* end, const float* packed, Vec (&sums)[kVectors]) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  for (; at != end; ++at) {
    const float* right = packed + at->k * kVectors * lanes;
    const Vec left = hn::Set(d, at->left);
    HWY_UNROLL(8)
    for (std::size_t v = 0; v < kVectors; ++v)
      sums[v] = hn::MulAdd(left, hn::LoadU(d, right + v * lanes), sums[v]);
  }
}

/// What a row does: to += common * sum + weight * (of the first), with the sum known or written.
template <bool kKnown, class Sum>
HWY_INLINE void add_row(const Entries& entries, std::size_t row, const float* packed, const Weighted& which,
                        Sum* sum, float* to) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const Entry* begin = entries.all.data() + (row == 0 ? 0 : entries.ends[row - 1]);
  const Entry* middle = entries.all.data() + entries.ends_of_first[row];
  const Vec weight = hn::Set(d, which.weight);
  const Vec common = hn::Set(d, which.common);
  Vec sums[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) sums[v] = hn::Zero(d);
  add_up(begin, middle, packed, sums);
  if constexpr (kKnown) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const Vec with_first = hn::MulAdd(weight, sums[v], hn::LoadU(d, to + v * lanes));
      hn::StoreU(hn::MulAdd(common, hn::LoadU(d, sum + v * lanes), with_first), d, to + v * lanes);
    }
  } else {
    for (std::size_t v = 0; v < kVectors; ++v)
      hn::StoreU(hn::MulAdd(weight, sums[v], hn::LoadU(d, to + v * lanes)), d, to + v * lanes);
    add_up(middle, entries.all.data() + entries.ends[row], packed, sums);
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[v], d, sum + v * lanes);
      hn::StoreU(hn::MulAdd(common, sums[v], hn::LoadU(d, to + v * lanes)), d, to + v * lanes);
    }
  }
}

HWY_INLINE void prefetch_block(const float* at) {
  for (std::size_t v = 0; v < kVectors; ++v) hwy::Prefetch(at + v * hn::Lanes(Tag()));
}

template <bool kKnown, class Sum>
void add(const OuterProducts& all, const Weighted& which, std::size_t begin, std::size_t end, Sum* sum,
         float* to) {
  const std::size_t count = kKnown ? which.first : which.count;
  const std::size_t block = block_columns();
  const Entries entries = entries_of(all, which.order, which.first, count, begin, end);
  const auto packed = aligned_floats(count * block);
  std::vector<float> cut_to(block);
  std::vector<float> cut_sum(block);
  for (std::size_t column = 0; column < all.n; column += block) {
    const std::size_t columns = std::min(block, all.n - column);
    pack(all, which.order, count, column, packed.get());
    for (std::size_t row = begin; row < end; ++row) {
      Sum* own_sum = sum + row * all.n + column;
      float* own_to = to + row * all.n + column;
      if (columns == block) {
        if (row + 1 < end) {
          prefetch_block(own_to + all.n);
          prefetch_block(own_sum + all.n);
        }
        add_row<kKnown>(entries, row - begin, packed.get(), which, own_sum, own_to);
        continue;
      }
      // Over the edge: in a copy that has room.
      std::copy_n(own_to, columns, cut_to.data());
      if constexpr (kKnown) std::copy_n(own_sum, columns, cut_sum.data());
      add_row<kKnown>(entries, row - begin, packed.get(), which, cut_sum.data(), cut_to.data());
      std::copy_n(cut_to.data(), columns, own_to);
      if constexpr (!kKnown) std::copy_n(cut_sum.data(), columns, own_sum);
    }
  }
}

/// totals[k] (lanes) += left * <right_k, the row's numbers>, of entries [at, end).
HWY_INLINE void add_inner_of_row(const Entry* at, const Entry* end, const float* packed, const float* numbers,
                                 float* totals) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  Vec row[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, numbers + v * lanes);
  for (; at != end; ++at) {
    const float* right = packed + at->k * kVectors * lanes;
    Vec even = hn::Zero(d);
    Vec odd = hn::Zero(d);
    HWY_UNROLL(4)
    for (std::size_t v = 0; v < kVectors; v += 2) {
      even = hn::MulAdd(hn::LoadU(d, right + v * lanes), row[v], even);
      odd = hn::MulAdd(hn::LoadU(d, right + (v + 1) * lanes), row[v + 1], odd);
    }
    float* total = totals + at->k * lanes;
    hn::StoreU(hn::MulAdd(hn::Set(d, at->left), hn::Add(even, odd), hn::LoadU(d, total)), d, total);
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

void add_inner(const OuterProducts& all, std::size_t begin, std::size_t end, const float* matrix,
               double* products) {
  const std::size_t lanes = hn::Lanes(Tag());
  const std::size_t block = block_columns();
  std::vector<std::size_t> order(all.count);
  for (std::size_t k = 0; k < all.count; ++k) order[k] = k;
  const Entries entries = entries_of(all, order.data(), all.count, all.count, begin, end);
  const auto packed = aligned_floats(all.count * block);
  std::vector<float> cut(block);
  const auto totals = aligned_floats(all.count * lanes);
  std::fill_n(totals.get(), all.count * lanes, 0.0F);
  for (std::size_t column = 0; column < all.n; column += block) {
    const std::size_t columns = std::min(block, all.n - column);
    pack(all, order.data(), all.count, column, packed.get());
    for (std::size_t row = begin; row < end; ++row) {
      const float* numbers = matrix + row * all.n + column;
      if (columns < block) {
        std::copy_n(numbers, columns, cut.data());
        numbers = cut.data();
      } else if (row + 1 < end) {
        prefetch_block(numbers + all.n);
      }
      const std::size_t own = row - begin;
      add_inner_of_row(entries.all.data() + (own == 0 ? 0 : entries.ends[own - 1]),
                       entries.all.data() + entries.ends[own], packed.get(), numbers, totals.get());
      if ((own + 1) % kRows != 0 && row + 1 < end) continue;
      for (std::size_t k = 0; k < all.count; ++k)
        for (std::size_t lane = 0; lane < lanes; ++lane)
          products[k] += static_cast<double>(totals[k * lanes + lane]);
      std::fill_n(totals.get(), all.count * lanes, 0.0F);
    }
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

/// As many as whose right vectors stay in the first cache: the matrix is read once for each so many.
constexpr std::size_t kExamples = 64;

HWY_EXPORT(form);
HWY_EXPORT(add_inner);
HWY_EXPORT(add_with_sum);
HWY_EXPORT(add_by_sum);

std::size_t entries(const OuterProducts& all) {
  std::uint32_t total = 0;  // of 32 bits, which makes lanes of as many as the numbers'
  for (std::size_t k = 0; k < all.count * all.m; ++k) total += all.left[k] != 0.0F ? 1U : 0U;
  return total;
}

void form(const OuterProducts& all, std::size_t begin, std::size_t end, float alpha, float* rows) {
  HWY_DYNAMIC_DISPATCH(form)(all, begin, end, alpha, rows);
}

void add_inner(const OuterProducts& all, std::size_t begin, std::size_t end, const float* matrix,
               double* products) {
  for (std::size_t first = 0; first < all.count; first += kExamples) {
    const OuterProducts some{all.left + first * all.m, all.right + first * all.n,
                             std::min(kExamples, all.count - first), all.m, all.n};
    HWY_DYNAMIC_DISPATCH(add_inner)(some, begin, end, matrix, products + first);
  }
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
