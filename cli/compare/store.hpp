// SPDX-License-Identifier: Apache-2.0
// Finished runs on disk, so that a comparison that was broken off, or gets more rates, orders or seeds,
// trains only what is missing. JSON lines: the settings that all runs share, then a line per run.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compare/result.hpp"

namespace cdgrab::cli {

using Settings = std::vector<std::pair<std::string, std::string>>;

std::string run_line(const RunRecord& run);
/// Throws what nlohmann::json throws, or std::runtime_error, for what run_line() did not write.
RunRecord parse_run_line(const std::string& line);

class RunStore {
 public:
  /// Reads what `file` holds, or begins it. Throws UserError if its runs were made with other settings,
  /// FileError if it is damaged, cannot be written, or another process holds it. A last line that was cut off
  /// is dropped.
  RunStore(std::filesystem::path file, const Settings& settings);
  ~RunStore();
  RunStore(const RunStore&) = delete;
  RunStore& operator=(const RunStore&) = delete;

  /// Null if it has not been run.
  [[nodiscard]] const RunRecord* find(const Recipe& recipe, double rate, std::uint64_t seed) const;

  /// Written before it returns; those that are there already are passed over.
  void add(std::span<const RunRecord> runs);

  /// The smallest loss there is, or that it cannot be told.
  [[nodiscard]] bool knows_optimum() const { return knows_optimum_; }
  [[nodiscard]] std::optional<double> optimum() const { return optimum_; }
  void keep_optimum(std::optional<double> loss);

 private:
  void read(const std::string& text, const Settings& settings);
  void append(const std::string& lines);

  std::filesystem::path file_;
  int descriptor_ = -1;
  std::vector<RunRecord> runs_;
  bool knows_optimum_ = false;
  std::optional<double> optimum_;
};

}  // namespace cdgrab::cli
