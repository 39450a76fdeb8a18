// SPDX-License-Identifier: Apache-2.0
// Products of many rows with a matrix of few columns, which a BLAS takes several reads' time for.
#pragma once

#include <cstddef>

#include "kernels/strided.hpp"

namespace cdgrab::torch::kernels {

/// out = matrix * map, with map (matrix.columns, size) and out (matrix.rows, size), contiguous.
void project(const Strided& matrix, const float* map, std::size_t size, float* out);

}  // namespace cdgrab::torch::kernels
