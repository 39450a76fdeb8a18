// SPDX-License-Identifier: Apache-2.0
// Products of gradients that are zero but for a few rows: those of a table in which examples look things up.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cdgrab::torch::kernels {

/// Example b adds right[b][t] (n numbers) to row indices[b][t] of its matrix, for t < positions; contiguous.
template <class T>
struct Lookups {
  const std::int64_t* indices;
  const T* right;
  std::size_t batch, positions, n;
};

/// products[i][j] = <matrix of a's example i, matrix of b's example j>, for float and double. Only rows of
/// the table that both have are touched.
template <class T>
void cross(const Lookups<T>& a, const Lookups<T>& b, T* products);

}  // namespace cdgrab::torch::kernels
