// SPDX-License-Identifier: Apache-2.0
// What `cdgrab compare` was asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "settings_flags.hpp"

namespace cdgrab::cli {

struct CompareOptions {
  std::shared_ptr<const SettingsFlags> flags;  ///< of what all runs share
  std::string orders = "rr,pair";
  std::string rates;      ///< empty: around the task's
  std::string schedules;  ///< empty: the task's
  std::string averages = "none";
  std::uint64_t seed = 0;  ///< the first
  std::size_t seeds = 3;
  std::size_t jobs = 0;  ///< 0: one per core
  std::string out;       ///< empty: compare-TASK
  bool dry_run = false;
  bool json = false;
  bool quiet = false;
  std::vector<std::string> words;  ///< of the command line
  std::string command_line;        ///< the same, to be typed again
};

/// Defined twice, as run_train() is: cdgrab-train trains, cdgrab hands over to it.
void run_compare(const CompareOptions& options);

}  // namespace cdgrab::cli
