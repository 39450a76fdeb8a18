// SPDX-License-Identifier: Apache-2.0
// The uniform average of the weights after each step of the last half of the epochs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cdgrab/state.hpp"

namespace cdgrab::training {

/// Sums in float64, so that the number of steps does not matter.
class TailAverage {
 public:
  /// The first epoch, counted from 0, whose steps are averaged.
  static std::size_t first_epoch(std::size_t epochs) { return epochs / 2; }

  template <class T>
  void add(std::span<const T> weights);
  [[nodiscard]] std::uint64_t count() const { return count_; }
  /// At least one must have been added.
  template <class T>
  void mean(std::span<T> out) const;

  void save(State& state) const;
  /// Of `size` weights.
  void load(const State& state, std::size_t size);

 private:
  std::vector<double> sum_;
  std::uint64_t count_ = 0;
};

}  // namespace cdgrab::training
