// SPDX-License-Identifier: Apache-2.0
// One epoch under way: its order, what of it has been handed out, and what has been observed. The two
// run apart, since a loader fetches far ahead of the training step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cdgrab/code.hpp"
#include "cdgrab/permutation.hpp"

namespace cdgrab {

class State;

/// Units of `unit` consecutive examples; the last may be short.
constexpr std::size_t unit_count(std::size_t examples, std::size_t unit) {
  return examples / unit + (examples % unit == 0 ? 0 : 1);
}

class Epoch {
 public:
  /// `unit` consecutive examples are ordered as one; the last unit may be short.
  /// Codes have `levels` bits. `repeats`: the order may hold a unit twice.
  Epoch(std::size_t examples, std::size_t unit, unsigned levels, bool repeats);

  /// Starts afresh with this order, one entry per unit.
  void start(std::vector<Index> order);
  /// Nothing is handed out any more; what was observed stays observed.
  void rewind() { seek(0); }
  /// As if `examples` had been handed out.
  void seek(std::size_t examples);

  std::span<const Index> next(std::size_t count);
  /// What next() would hand out.
  [[nodiscard]] std::vector<Index> upcoming(std::size_t count) const;
  /// Examples before the oldest unit that is not observed.
  [[nodiscard]] std::size_t observed_prefix() const;

  [[nodiscard]] std::size_t units() const { return units_; }
  /// Examples in this epoch: all of them, unless units repeat and differ in size.
  [[nodiscard]] std::size_t length() const { return length_; }
  [[nodiscard]] std::size_t handed_out() const { return handed_out_; }
  [[nodiscard]] bool through() const { return handed_units_ == units_; }
  [[nodiscard]] std::size_t observed() const { return observed_; }
  [[nodiscard]] std::size_t outstanding() const { return handed_units_ - observed_below_; }
  [[nodiscard]] std::span<const Index> order() const { return order_; }
  [[nodiscard]] std::span<const Code> codes() const { return codes_; }
  [[nodiscard]] std::span<Code> codes() { return codes_; }

  /// The positions of the `count` oldest units handed out and not observed. Throws UserError.
  [[nodiscard]] std::vector<Index> oldest(std::size_t count) const;
  /// The positions of the units that hold these examples. Throws UserError for one that is out of
  /// range, was not handed out, or was observed before.
  [[nodiscard]] std::vector<Index> named(std::span<const Index> examples);
  /// To be called after codes() has been set at these positions, none of which was observed before.
  void count_observed(std::span<const Index> positions);

  void save(State& state) const;
  /// Throws StateMismatch; the epoch is then of no use any more.
  void load(const State& state);

 private:
  [[nodiscard]] std::size_t unit_size(Index unit) const;
  [[nodiscard]] Index position_of(Index example) const;
  void hand_out_unit();

  std::size_t examples_;
  std::size_t unit_;
  std::size_t units_;
  unsigned codes_below_;
  bool repeats_;
  std::vector<Index> order_;
  std::vector<Code> codes_;
  std::vector<Index> inverse_;      ///< made when examples are first named
  std::vector<Index> handed_;       ///< what next() returns when units hold several examples
  std::size_t length_ = 0;          ///< examples
  std::size_t handed_out_ = 0;      ///< examples
  std::size_t handed_units_ = 0;    ///< units handed out whole
  std::size_t within_ = 0;          ///< examples handed out of the unit after these
  std::size_t observed_ = 0;        ///< units
  std::size_t observed_below_ = 0;  ///< of these, among the handed_units_ first
  std::size_t oldest_ = 0;          ///< every position below is observed
};

}  // namespace cdgrab
