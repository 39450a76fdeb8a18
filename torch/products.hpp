// SPDX-License-Identifier: Apache-2.0
// Matrix products, by kernels of our own where these take less time than a BLAS.
#pragma once

#include "autograd.hpp"

namespace cdgrab::torch {

/// (N, n) x (n, r).
Tensor times(const Tensor& matrix, const Tensor& map);

/// out[b] (m, n) = beta * out[b] + alpha * left[b]^T right[b], for left (B, T, m) and right (B, T, n). With a
/// beta of 0 it need not hold anything yet.
void multiply_transposed(const Tensor& left, const Tensor& right, double alpha, double beta,
                         const Tensor& out);

/// The same with a beta of 0, and sum (m, n) += all of out. False, and nothing is done, where that is for a
/// BLAS.
bool multiply_transposed_with_sum(const Tensor& left, const Tensor& right, double alpha, const Tensor& out,
                                  const Tensor& sum);

}  // namespace cdgrab::torch
