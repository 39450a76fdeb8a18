// SPDX-License-Identifier: Apache-2.0
// What every rank says to all others at the head of a round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cdgrab/bytes.hpp"
#include "cdgrab/code.hpp"
#include "cdgrab/permutation.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab {

/// What the rank's caller asked for.
enum class Call : std::uint8_t { kStep, kAverage, kEndEpoch, kSave };
std::string_view call_name(Call call);

/// Units of one worker that were observed, in order of arrival, and the code of each as far as its owner
/// knows it.
struct Arrivals {
  std::uint32_t worker = 0;
  std::vector<Index> positions;
  std::vector<Code> codes;  ///< as many
};

/// A vector that a worker gives to be averaged.
struct Gradient {
  std::uint32_t worker = 0;
  Index position = 0;  ///< of the unit that it is of
  Code code = 0;
  std::uint8_t balanced = 0;  ///< 1 if its slices are what cd-pair balances
  double weight = 0.0;
  double scale = 1.0;  ///< for balancing
};

struct Message {
  Call call = Call::kStep;
  std::uint8_t left = 0;  ///< 1 if a hosted worker has something to hand out still
  std::uint8_t type = 0;  ///< of the vectors that are balanced: 1 + DType, or 0 if none has been seen
  std::uint8_t gradient_type = 0;  ///< of those that are averaged, 0 if none are
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  std::uint64_t made = 0;    ///< a hash of the arguments of the sampler
  std::uint64_t orders = 0;  ///< a hash of all orders
  std::uint64_t dim = 0;
  std::uint64_t gradient_dim = 0;
  std::uint64_t hold_limit = 0;
  std::uint64_t held = 0;            ///< bytes, now
  std::vector<std::uint64_t> sizes;  ///< bytes packed for each rank
  std::vector<Arrivals> arrivals;
  std::vector<Gradient> gradients;
};

Bytes encode_message(const Message& message);
/// Throws CommunicationError for bytes that are none. A list of more than `most` is refused before it is
/// made: a few bytes can claim a long one.
Message decode_message(std::span<const std::byte> bytes, std::size_t most);

}  // namespace cdgrab
