// SPDX-License-Identifier: Apache-2.0
// What `cdgrab train` was asked.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "settings_flags.hpp"

namespace cdgrab::cli {

struct TrainOptions {
  std::shared_ptr<const SettingsFlags> flags;
  std::string out;
  std::string resume;
  std::size_t checkpoint_every = 0;  ///< steps; 0: when an epoch ends, but not all the time
  std::size_t timeout = 600;         ///< seconds that ranks wait for each other
  bool dry_run = false;
  bool json = false;
  bool quiet = false;
  std::vector<std::string> words;  ///< of the command line
  std::string command_line;        ///< the same, to be typed again
};

/// Defined twice: in cdgrab-train it trains, and in cdgrab, which starts fast because it knows no torch, it
/// hands over to cdgrab-train.
void run_train(const TrainOptions& options);

}  // namespace cdgrab::cli
