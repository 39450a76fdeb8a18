// SPDX-License-Identifier: Apache-2.0
// Runs a program and keeps what it said on each stream.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace cdgrab::test {

struct Outcome {
  int exit_code = -1;  ///< 128 + signal if one ended it
  std::string out;
  std::string err;
};

struct RunOptions {
  std::filesystem::path folder = ".";
  /// Sent as soon as `after` appears on stdout.
  std::optional<int> signal;
  std::string after;
  /// The program is killed, and the test with it, after this long.
  std::chrono::seconds limit{120};
};

Outcome run_program(const std::vector<std::string>& command, const RunOptions& options = {});

}  // namespace cdgrab::test
