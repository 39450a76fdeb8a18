// SPDX-License-Identifier: Apache-2.0
// What is said beside the data: always on stderr.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace cdgrab::cli {

/// Whether stderr is a terminal that understands escape sequences.
bool stderr_is_terminal();

/// "cdgrab: message" on stderr, with the rank if it is one of several and not the first; coloured up to the
/// message on a terminal unless NO_COLOR is set.
void say(std::string_view message);
void say_error(std::string_view message);

/// One line that is drawn over itself; nothing at all unless stderr is a terminal.
class Progress {
 public:
  explicit Progress(bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Redraws at most ten times a second.
  void show(std::string_view text);
  void clear();

 private:
  bool active_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_draw_;
};

}  // namespace cdgrab::cli
