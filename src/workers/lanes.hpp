// SPDX-License-Identifier: Apache-2.0
// Whose pair is next: pair index outer, worker inner (docs/math.md, section 5). Knows positions and numbers
// of pairs, and no vectors; every rank keeps the same lanes, since all hear of every arrival.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "cdgrab/permutation.hpp"

namespace cdgrab {

class State;

/// Two units of one worker, in order of arrival.
struct WaitingPair {
  std::size_t worker = 0;
  Index first = 0;
  Index second = 0;
  std::uint64_t number = 0;  ///< of their difference
};

class Lanes {
 public:
  /// Units of each worker.
  explicit Lanes(std::vector<std::size_t> units);

  /// A new epoch, in which so many units of each worker have arrived already.
  void start(std::span<const std::size_t> arrived = {});

  /// The unit at this position has arrived and is finite. True if it completes a pair, which now waits for
  /// its turn and gets the next number.
  bool arrive(std::size_t worker, Index position);
  /// The unit at this position is passed over: it has arrived and is not finite, or turns out so while it
  /// waits for a partner.
  void pass_over(std::size_t worker, Index position);
  /// Nothing more will arrive of this worker in this epoch.
  void close(std::size_t worker) { lanes_[worker].to_come = 0; }

  /// The pairs whose turn has come, in that order; they do not wait any longer.
  std::vector<WaitingPair> due();

  [[nodiscard]] std::size_t workers() const { return lanes_.size(); }
  /// The unit that waits for its partner.
  [[nodiscard]] std::optional<Index> carry(std::size_t worker) const { return lanes_[worker].carry; }
  /// All that wait for their turn, worker by worker.
  [[nodiscard]] std::vector<WaitingPair> waiting() const;

  void save(State& state) const;
  /// Into lanes that were just started; the pairs get the numbers from 0 on, in the order of waiting().
  /// Throws StateMismatch.
  void load(const State& state);

 private:
  struct Lane {
    std::size_t units = 0;
    std::size_t to_come = 0;
    std::optional<Index> carry;
    std::deque<WaitingPair> pairs;

    [[nodiscard]] bool may_pair() const { return to_come + (carry ? 1 : 0) >= 2; }
  };

  std::vector<Lane> lanes_;
  std::size_t turn_ = 0;  ///< the worker whose pair is next
  std::size_t waiting_ = 0;
  std::uint64_t next_number_ = 0;
};

}  // namespace cdgrab
