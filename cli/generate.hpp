// SPDX-License-Identifier: Apache-2.0
// Vectors for experiments without data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cdgrab/npy.hpp"
#include "terminal.hpp"

namespace cdgrab::cli {

/// Independent N(0, 1/dim). Throws UserError if they take more memory than there is.
Matrix<float> generate_vectors(std::size_t examples, std::size_t dim, std::uint64_t seed, Progress& progress);

}  // namespace cdgrab::cli
