// SPDX-License-Identifier: Apache-2.0
// Products with a matrix of few columns, or over a single position, by kernels of our own where these take
// less time than a BLAS.
#pragma once

#include "autograd.hpp"

namespace cdgrab::torch {

/// (N, n) x (n, r).
Tensor times(const Tensor& matrix, const Tensor& map);

/// rows[b] (m, n) = alpha * left[b]^T right[b], for left (B, T, m) and right (B, T, n). False, and nothing is
/// done, where that is for a BLAS.
bool form_thin_rows(const Tensor& left, const Tensor& right, double alpha, const Tensor& rows);

}  // namespace cdgrab::torch
