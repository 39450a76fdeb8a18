// SPDX-License-Identifier: Apache-2.0
// Interleaved timing: every contender once per round, so that a noisy machine disturbs all alike.
#pragma once

#include <time.h>  // NOLINT(modernize-deprecated-headers): clock_gettime

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace bench {

struct Contender {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds;

  [[nodiscard]] double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

inline double seconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Of CPU time: of CLOCK_THREAD_CPUTIME_ID, this thread's, or CLOCK_PROCESS_CPUTIME_ID, all threads'.
inline double processor_seconds(clockid_t whose) {
  timespec now{};
  clock_gettime(whose, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// CPU time: one round to warm up, then `rounds` that count.
inline void interleave(std::vector<Contender>& contenders, std::size_t rounds) {
  for (std::size_t round = 0; round <= rounds; ++round)
    for (Contender& contender : contenders) {
      const double before = processor_seconds(CLOCK_PROCESS_CPUTIME_ID);
      contender.run();
      if (round > 0) contender.seconds.push_back(processor_seconds(CLOCK_PROCESS_CPUTIME_ID) - before);
    }
}

}  // namespace bench
