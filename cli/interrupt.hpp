// SPDX-License-Identifier: Apache-2.0
// Ctrl-C ends a command between two pieces of work, so nothing is left half done. A second one,
// while a long piece is under way, ends it at once.
#pragma once

#include <csignal>
#include <string>

namespace cdgrab::cli {

/// Ends the command with 130.
struct Interrupted {
  std::string outcome = "no file was written";
};

inline volatile std::sig_atomic_t interrupt_requested = 0;

inline void watch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupt_requested = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

inline void check_interrupt() {
  if (interrupt_requested != 0) throw Interrupted{};
}

}  // namespace cdgrab::cli
