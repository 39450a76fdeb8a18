// SPDX-License-Identifier: Apache-2.0
// What the ranks of one run tell each other beside gradients. Everything here is collective.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "cdgrab/communicator.hpp"

namespace cdgrab::training {

/// What rank 0 gave.
std::vector<std::byte> bytes_of_first(Communicator& communicator, std::span<const std::byte> mine);

template <class T>
T value_of_first(Communicator& communicator, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::vector<std::byte> bytes = bytes_of_first(communicator, std::as_bytes(std::span(&mine, 1)));
  T first;
  std::memcpy(&first, bytes.data(), sizeof(T));
  return first;
}

/// What each rank gave, by rank.
std::vector<std::uint64_t> words_of_all(Communicator& communicator, std::uint64_t mine);

/// Throws CommunicationError, which names the ranks, unless all have the same.
void require_same_weights(Communicator& communicator, std::uint64_t hash);

}  // namespace cdgrab::training
