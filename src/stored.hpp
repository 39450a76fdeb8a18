// SPDX-License-Identifier: Apache-2.0
// Values as states hold them, for whoever reads and writes one.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "cdgrab/bytes.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab {

/// Of vectors, which are float or double.
template <class T>
inline constexpr DType kTypeOf = std::is_same_v<T, float> ? DType::kF32 : DType::kF64;

/// An integer that counts something, and will go on to. Throws StateMismatch, in the name of `where`, if it
/// is negative, or so large that an integer could not go on.
inline std::uint64_t stored_count(const State& state, std::string_view key, std::string_view where) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  const std::int64_t value = state.integer(key);
  if (value >= 0 && value <= kMost) return static_cast<std::uint64_t>(value);
  throw StateMismatch(where, fmt::format("'{}' is {}; 0 to {} are possible: load what a sampler has saved",
                                         state.name(key), value, kMost));
}

inline Array array_of(const Bytes& bytes) {
  return {DType::kU8, {bytes.size()}, {bytes.begin(), bytes.end()}};
}

inline Bytes bytes_of(const Array& array) { return {array.bytes}; }

}  // namespace cdgrab
