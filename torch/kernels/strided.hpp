// SPDX-License-Identifier: Apache-2.0
// A matrix in memory, whichever of its sides is contiguous.
#pragma once

#include <cstddef>

namespace cdgrab::torch::kernels {

/// Numbers at first[i * row_stride + k * column_stride].
struct Strided {
  const float* first;
  std::size_t rows, columns;
  std::size_t row_stride, column_stride;
};

}  // namespace cdgrab::torch::kernels
