// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011. A bijection of 128-bit counters for every 64-bit key.
#pragma once

#include <array>
#include <cstdint>

#include "cdgrab/random.hpp"

namespace cdgrab {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline PhiloxCounter philox_round(const PhiloxCounter& counter, const PhiloxKey& key) {
  const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
  const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
  return {
      static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
      static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
}

inline PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    counter = philox_round(counter, key);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// All 128 bits at one position of a stream; random_bits() is the first two words.
inline PhiloxCounter philox_block(const Stream& stream, std::uint64_t position) {
  const std::uint32_t use =
      (static_cast<std::uint32_t>(stream.purpose) << 16) | (stream.level & std::uint32_t{0xFFFF});
  return philox4x32_10(
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32),
       static_cast<std::uint32_t>(stream.epoch), use},
      {static_cast<std::uint32_t>(stream.seed), static_cast<std::uint32_t>(stream.seed >> 32)});
}

inline std::uint64_t join_words(std::uint32_t high, std::uint32_t low) {
  return (std::uint64_t{high} << 32) | low;
}

}  // namespace cdgrab
