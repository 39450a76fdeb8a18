// SPDX-License-Identifier: Apache-2.0
// Codes: where each position of an epoch goes in the next one (docs/math.md, section 4).
//
// A tree with L levels of signs has 2^L leaves (buckets) and 2^L - 1 inner nodes, whose middles hold
// what was left unpaired there. A code is the in-order number of the leaf or middle: even for a leaf,
// odd for a middle, so that the next order is one stable counting pass over the codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cdgrab/permutation.hpp"

namespace cdgrab {

using Code = std::uint16_t;

/// Never observed, and observed but not finite: both stand at the root's middle.
inline constexpr Code kUnobserved = 0xFFFF;
inline constexpr Code kNotFinite = 0xFFFE;

/// Codes of a deeper tree would not fit.
inline constexpr unsigned kMaxLevels = 14;

/// The leaf reached by `bits`, the root's sign first, + = 0.
constexpr Code leaf_code(std::uint32_t bits) { return static_cast<Code>(2 * bits); }

/// The middle of the node reached by the first `level` bits.
constexpr Code middle_code(std::uint32_t bits, unsigned level, unsigned levels) {
  return static_cast<Code>(((2 * bits + 1) << (levels - level)) - 1);
}

/// The next order: codes in ascending order, equal codes in their present order, odd leaves backwards.
/// codes[t] belongs to order[t]. One pass, 4 bytes a unit besides its arguments.
std::vector<Index> fold(std::span<const Index> order, std::span<const Code> codes, unsigned levels);

}  // namespace cdgrab
