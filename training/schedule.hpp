// SPDX-License-Identifier: Apache-2.0
// The learning rate of each step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "cdgrab/state.hpp"
#include "tasks/catalogue.hpp"

namespace cdgrab::training {

/// constant: lr. cosine: lr (1 + cos(pi t / T)) / 2 and linear: lr (1 - t / T), where t of T steps are done.
/// plateau: lr, times `decay` whenever the loss has stopped to fall.
class RateSchedule {
 public:
  RateSchedule(const tasks::Recipe& recipe, std::uint64_t steps) : recipe_(recipe), steps_(steps) {}

  /// Of the step after `done` steps.
  [[nodiscard]] double rate(std::uint64_t done) const;
  /// `loss` over all training examples, after an epoch.
  void end_epoch(double loss);

  void save(State& state) const;
  void load(const State& state);

 private:
  tasks::Recipe recipe_;
  std::uint64_t steps_;
  double factor_ = 1.0;
  double best_ = std::numeric_limits<double>::infinity();
  std::int64_t bad_epochs_ = 0;
};

}  // namespace cdgrab::training
