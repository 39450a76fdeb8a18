// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/random.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "philox.hpp"

namespace cdgrab {
namespace {

__extension__ typedef unsigned __int128 Uint128;

std::uint64_t bits_at(const Stream& stream, std::uint64_t position) {
  const PhiloxCounter block = philox_block(stream, position);
  return join_words(block[1], block[0]);
}

// Lemire's multiply-high; the bias is below bound / 2^64.
std::uint64_t scale_below(std::uint64_t bits, std::uint64_t bound) {
  return static_cast<std::uint64_t>((Uint128{bits} * bound) >> 64);
}

}  // namespace

std::uint64_t random_bits(const Stream& stream, std::uint64_t position) { return bits_at(stream, position); }

double uniform(const Stream& stream, std::uint64_t position) {
  return static_cast<double>(bits_at(stream, position) >> 11) * 0x1p-53;
}

double normal(const Stream& stream, std::uint64_t position) {
  const PhiloxCounter block = philox_block(stream, position);
  const double radius_draw = (static_cast<double>(block[1]) + 1.0) * 0x1p-32;
  const double angle_draw = static_cast<double>(block[0]) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(radius_draw)) * std::cos(2.0 * std::numbers::pi * angle_draw);
}

std::uint64_t uniform_below(const Stream& stream, std::uint64_t position, std::uint64_t bound) {
  return scale_below(bits_at(stream, position), bound);
}

// Fisher-Yates from the end; the swap at t draws at position t. The draws do not depend on the
// entries, so a batch of them is made ahead and its targets are fetched together: a large order is
// bound by memory latency otherwise.
std::vector<Index> random_permutation(const Stream& stream, std::size_t n) {
  constexpr std::size_t kAhead = 64;
  std::array<std::size_t, kAhead> targets;
  std::vector<Index> order = identity_order(n);
  for (std::size_t end = n; end > 1;) {
    const std::size_t count = std::min(kAhead, end - 1);
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t t = end - 1 - k;
      targets[k] = static_cast<std::size_t>(scale_below(bits_at(stream, t), t + 1));
      __builtin_prefetch(&order[targets[k]], 1);
    }
    for (std::size_t k = 0; k < count; ++k) std::swap(order[end - 1 - k], order[targets[k]]);
    end -= count;
  }
  return order;
}

}  // namespace cdgrab
