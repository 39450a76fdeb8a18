// SPDX-License-Identifier: Apache-2.0
// Matrices that are products of two vectors each, which are never formed: the gradients of a layer that an
// example passes once. Entries of the left vector that are zero, as behind a ReLU, cost nothing.
#pragma once

#include <cstddef>

namespace cdgrab::torch::kernels {

/// The k-th is left_k^T right_k, with left (count, m) and right (count, n), contiguous.
struct OuterProducts {
  const float* left;
  const float* right;
  std::size_t count, m, n;
};

/// Which of them are added, and how: those that `order` names.
struct Weighted {
  const std::size_t* order;
  std::size_t first;  ///< so many of them are added with `weight` more than the rest
  std::size_t count;
  float weight;
  float common;  ///< the weight of the rest
};

/// rows[k] (m, n) = left_k^T right_k * alpha, for k in [begin, end); without a zero that is negative, as a
/// sum would have none.
void form(const OuterProducts& all, std::size_t begin, std::size_t end, float alpha, float* rows);

/// Entries of the left vectors that are not zero.
std::size_t entries(const OuterProducts& all);

/// products[k] += <left_k^T right_k, matrix> for all k, over rows [begin, end) of the matrix (m, n).
void add_inner(const OuterProducts& all, std::size_t begin, std::size_t end, const float* matrix,
               double* products);

/// sum = what the `count` add up to, and to += common * sum + weight * (the first of them); rows [begin, end)
/// of both, (m, n), each coordinate of which is read and written once.
void add_with_sum(const OuterProducts& all, const Weighted& which, std::size_t begin, std::size_t end,
                  float* sum, float* to);

/// The same where the sum is known: only the first are looked at.
void add_by_sum(const OuterProducts& all, const Weighted& which, std::size_t begin, std::size_t end,
                const float* sum, float* to);

}  // namespace cdgrab::torch::kernels
