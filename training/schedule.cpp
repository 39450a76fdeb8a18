// SPDX-License-Identifier: Apache-2.0
#include "training/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cdgrab::training {

double RateSchedule::rate(std::uint64_t done) const {
  const double t = std::min(1.0, static_cast<double>(done) / static_cast<double>(steps_));
  switch (recipe_.schedule) {
    case tasks::Schedule::kConstant:
      return recipe_.lr;
    case tasks::Schedule::kCosine:
      return recipe_.lr * 0.5 * (1.0 + std::cos(std::numbers::pi * t));
    case tasks::Schedule::kLinear:
      return recipe_.lr * (1.0 - t);
    case tasks::Schedule::kPlateau:
      return recipe_.lr * factor_;
  }
  return recipe_.lr;
}

void RateSchedule::end_epoch(double loss) {
  if (loss < best_ - recipe_.threshold) {
    best_ = loss;
    bad_epochs_ = 0;
  } else {
    ++bad_epochs_;
  }
  if (bad_epochs_ > static_cast<std::int64_t>(recipe_.patience)) {
    factor_ *= recipe_.decay;
    bad_epochs_ = 0;
  }
}

void RateSchedule::save(State& state) const {
  state.set("schedule.factor", factor_);
  state.set("schedule.best", best_);
  state.set("schedule.bad_epochs", bad_epochs_);
}

void RateSchedule::load(const State& state) {
  factor_ = state.number("schedule.factor");
  best_ = state.number("schedule.best");
  bad_epochs_ = state.integer("schedule.bad_epochs");
}

}  // namespace cdgrab::training
