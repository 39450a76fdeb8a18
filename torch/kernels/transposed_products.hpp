// SPDX-License-Identifier: Apache-2.0
// Products of two tall matrices, left^T right: sums of outer products over an example's positions. Some
// BLAS (MKL on processors that are not Intel's) leave half of a core's width unused.
#pragma once

#include <cstddef>

#include "kernels/strided.hpp"

namespace cdgrab::torch::kernels {

/// `count` matrices of one shape, the k-th `stride` numbers after the one before.
struct StridedSeries {
  Strided each;
  std::size_t stride;
  std::size_t count;
};

/// Whether this machine has registers as wide as makes it worth leaving the BLAS.
bool has_wide_registers();

/// out[k] (left.columns, right.columns), contiguous, = alpha * left_k^T right_k, or that `added` to it. Both
/// have as many rows, and each number is rounded the same whatever part of the whole is asked for.
void transposed_products(const StridedSeries& left, const StridedSeries& right, float alpha, bool added,
                         float* out);

}  // namespace cdgrab::torch::kernels
