// SPDX-License-Identifier: Apache-2.0
// Matrix products, by kernels of our own where these take less time than a BLAS.
#pragma once

#include "autograd.hpp"

namespace cdgrab::torch {

/// (N, n) x (n, r).
Tensor times(const Tensor& matrix, const Tensor& map);

/// (N, n) x (M, n)^T.
Tensor times_transposed(const Tensor& matrix, const Tensor& other);

/// out[b] (m, n) = beta * out[b] + alpha * left[b]^T right[b], for left (B, T, m) and right (B, T, n). With a
/// beta of 0 it need not hold anything yet.
void multiply_transposed(const Tensor& left, const Tensor& right, double alpha, double beta,
                         const Tensor& out);

/// The same with a beta of 0, and sum (m, n) += what they add up to. False, and nothing is done, where that
/// would take a pass of its own.
bool multiply_with_sum(const Tensor& left, const Tensor& right, double alpha, const Tensor& out,
                       const Tensor& sum);
/// Whether it would not, were there rows and a sum.
bool comes_with_sum(const Tensor& left, const Tensor& right);

}  // namespace cdgrab::torch
