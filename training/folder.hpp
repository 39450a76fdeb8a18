// SPDX-License-Identifier: Apache-2.0
// The folder of a run: metrics.jsonl, a line per epoch, and the last checkpoint.
#pragma once

#include <filesystem>
#include <string_view>

#include "training/run.hpp"

namespace cdgrab::training {

class RunFolder {
 public:
  /// Made if it is not there. Throws FileError if it cannot be written, UserError if there is a run in it.
  static RunFolder create(const std::filesystem::path& path);
  /// Throws FileError if there is no checkpoint in it.
  static RunFolder reopen(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  [[nodiscard]] std::filesystem::path checkpoint() const { return path_ / "checkpoint.safetensors"; }

  /// The checkpoint is the old one or the whole new one at every moment, also when power is cut.
  void save(const State& state) const;
  [[nodiscard]] State load() const;

  /// Adds the last record.
  void append(const Run& run) const;
  /// As many lines as the run has records: those of epochs that a checkpoint knows nothing of go.
  void rewrite(const Run& run) const;

 private:
  explicit RunFolder(std::filesystem::path path);

  std::filesystem::path path_;
};

}  // namespace cdgrab::training
