// SPDX-License-Identifier: Apache-2.0
// One epoch under way: its order, what of it has been handed out, and what has been observed. The two
// run apart, since a loader fetches far ahead of the training step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "cdgrab/code.hpp"
#include "cdgrab/permutation.hpp"

namespace cdgrab {

class State;

/// Units of `unit` consecutive examples; the last may be short, and then keeps the last place of every order.
constexpr std::size_t unit_count(std::size_t examples, std::size_t unit) {
  return examples / unit + (examples % unit == 0 ? 0 : 1);
}

class Epoch {
 public:
  /// `unit` consecutive examples are ordered as one. Codes have `levels` bits. `repeats`: the order may hold
  /// a unit twice.
  Epoch(std::size_t examples, std::size_t unit, unsigned levels, bool repeats);

  /// How errors are to call an example; by its own number unless said.
  void set_names(std::function<Index(Index)> names) { names_ = std::move(names); }

  /// Starts afresh with this order, one entry per unit.
  void start(std::vector<Index> order);
  /// As if `examples` had been handed out; what was observed stays observed, and is not handed out again.
  void seek(std::size_t examples);
  /// To the first example; this time everything is handed out, whether it was observed or not.
  void replay();
  /// Back to where start(), seek() or replay() went.
  void restart();

  std::span<const Index> next(std::size_t count);
  /// What next() would hand out.
  [[nodiscard]] std::vector<Index> upcoming(std::size_t count) const;
  /// Examples before the oldest unit that is not observed.
  [[nodiscard]] std::size_t observed_prefix() const;

  [[nodiscard]] std::size_t units() const { return units_; }
  /// Examples before the place where next() goes on, those that it passes over included.
  [[nodiscard]] std::size_t handed_out() const { return examples_before(handed_units_) + within_; }
  /// Whether next() has still to hand out so many. Looks no further than it must.
  [[nodiscard]] bool has_left(std::size_t examples) const;
  [[nodiscard]] bool through() const { return handed_units_ == units_; }
  [[nodiscard]] std::size_t observed() const { return observed_; }
  [[nodiscard]] std::size_t outstanding() const { return handed_units_ - observed_below_; }
  [[nodiscard]] std::span<const Index> order() const { return order_; }
  [[nodiscard]] std::span<const Code> codes() const { return codes_; }
  [[nodiscard]] std::span<Code> codes() { return codes_; }

  /// True if this order of the units ends with the short one, or there is none.
  [[nodiscard]] bool short_unit_is_last(std::span<const Index> order) const {
    return examples_ % unit_ == 0 || order.back() == units_ - 1;
  }
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
  [[nodiscard]] std::size_t examples_before(std::size_t position) const;
  /// Examples in the unit at this position.
  [[nodiscard]] std::size_t size_at(std::size_t position) const;
  /// For a position that was not handed out: it was before, in a pass that ended early.
  [[nodiscard]] bool passes_over(std::size_t position) const;
  [[nodiscard]] Index position_of(Index example) const;
  [[nodiscard]] Index name_of(Index example) const;
  void hand_out_unit();
  void pass_over_observed();

  std::size_t examples_;
  std::size_t unit_;
  std::size_t units_;
  unsigned codes_below_;
  bool repeats_;
  std::function<Index(Index)> names_;
  std::vector<Index> order_;
  std::vector<Code> codes_;
  std::vector<Index> inverse_;      ///< made when examples are first named
  std::vector<Index> handed_;       ///< what next() returns when it is no piece of order_
  std::size_t handed_units_ = 0;    ///< units handed out whole
  std::size_t within_ = 0;          ///< examples handed out of the unit after these
  std::size_t observed_ = 0;        ///< units
  std::size_t observed_below_ = 0;  ///< of these, among the handed_units_ first
  std::size_t oldest_ = 0;          ///< every position below is observed
  std::size_t start_ = 0;           ///< examples that the last seek() passed over
  bool replays_ = false;
};

}  // namespace cdgrab
