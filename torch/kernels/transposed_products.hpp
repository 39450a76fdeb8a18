// SPDX-License-Identifier: Apache-2.0
// Products of two tall matrices, left^T right: sums of outer products over an example's positions. With
// MKL in mind, which leaves half of the registers' width unused on processors that are not Intel's.
#pragma once

#include <cstddef>

#include "kernels/strided.hpp"

namespace cdgrab::torch::kernels {

/// `count` matrices of one shape, the k-th `stride` numbers after the one before.
struct StridedSeries {
  Strided each;
  std::size_t stride;
  std::size_t count;

  /// Matrices [begin, end).
  [[nodiscard]] StridedSeries some(std::size_t begin, std::size_t end) const {
    StridedSeries part = *this;
    part.each.first += begin * stride;
    part.count = end - begin;
    return part;
  }
  /// Columns [begin, end) of each.
  [[nodiscard]] StridedSeries columns(std::size_t begin, std::size_t end) const {
    StridedSeries part = *this;
    part.each.first += begin * each.column_stride;
    part.each.columns = end - begin;
    return part;
  }
};

/// Whether this machine has registers as wide as makes it worth leaving the BLAS.
bool has_wide_registers();

/// Where they go: matrices of contiguous numbers, the k-th `stride` numbers after the one before.
struct ProductTarget {
  float* first;
  std::size_t stride;
  bool added = false;    ///< to what is there
  float* sum = nullptr;  ///< a matrix to which each of them is added, too
};

/// alpha * left_k^T right_k for every k, (left.columns, right.columns); both have as many rows. Each number
/// is rounded the same whatever columns of the left are asked for.
void transposed_products(const StridedSeries& left, const StridedSeries& right, float alpha,
                         const ProductTarget& to);

}  // namespace cdgrab::torch::kernels
