// SPDX-License-Identifier: Apache-2.0
// Randomness as a pure function of (seed, purpose, epoch, position, level): no generator is carried
// along, so any rank, any batch size and any resume point draws the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cdgrab/permutation.hpp"

namespace cdgrab {

/// What a draw is for. Two purposes never share a number. At most 16 bits.
enum class Purpose : std::uint32_t {
  kOrder = 1,
  kBlocks = 2,
  kReplacement = 3,
  kSign = 4,
  kSketch = 5,
  kData = 6,
  kWorker = 7,
};

/// One stream of draws: everything but the position.
struct Stream {
  std::uint64_t seed = 0;
  Purpose purpose = Purpose::kOrder;
  std::uint64_t epoch = 0;  ///< the low 32 bits count
  std::uint32_t level = 0;  ///< the low 16 bits count
};

/// 64 uniform bits: Philox4x32-10 (Salmon et al., 2011) of the counter (position, epoch, purpose, level)
/// under the key `seed`.
std::uint64_t random_bits(const Stream& stream, std::uint64_t position);

/// Uniform on [0, 1), 53 bits.
double uniform(const Stream& stream, std::uint64_t position);

/// Standard normal (Box-Muller on one draw's two halves).
double normal(const Stream& stream, std::uint64_t position);

/// Uniform on {0, .., bound-1}; bound >= 1.
std::uint64_t uniform_below(const Stream& stream, std::uint64_t position, std::uint64_t bound);

/// A uniformly random permutation of 0..n-1.
std::vector<Index> random_permutation(const Stream& stream, std::size_t n);

}  // namespace cdgrab
