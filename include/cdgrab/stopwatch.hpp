// SPDX-License-Identifier: Apache-2.0
// Adds the time until its end to a sum.
#pragma once

#include <chrono>

namespace cdgrab {

class Stopwatch {
 public:
  /// Does nothing when `seconds` is null.
  explicit Stopwatch(double* seconds) : seconds_(seconds) {
    if (seconds_ != nullptr) begin_ = Clock::now();
  }
  ~Stopwatch() {
    if (seconds_ != nullptr) *seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double* seconds_;
  Clock::time_point begin_;
};

}  // namespace cdgrab
