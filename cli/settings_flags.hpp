// SPDX-License-Identifier: Apache-2.0
// The settings of a run as flags of a command.
#pragma once

#include <CLI/App.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "training/settings.hpp"

namespace cdgrab::cli {

/// Lives as long as the command it was added to.
class SettingsFlags {
 public:
  /// A flag for each setting but those named in `without`.
  explicit SettingsFlags(CLI::App& command, const std::vector<std::string_view>& without = {});
  SettingsFlags(const SettingsFlags&) = delete;
  SettingsFlags& operator=(const SettingsFlags&) = delete;

  /// What was given, and for the rest the defaults of the task. Throws UserError.
  [[nodiscard]] training::Settings settings() const;
  /// The same, not yet checked against each other.
  [[nodiscard]] training::Settings unchecked() const;
  /// With what a run that is stored goes on: `stored`, but for what was given and may change. Throws
  /// StateMismatch naming the first flag that was given, says something else and may not.
  [[nodiscard]] training::Settings resumed(const training::Settings& stored) const;

  [[nodiscard]] bool given(const std::string& name) const;
  /// Throws UserError for one that was given and is not among these: it belongs to something else.
  void require_only(const std::vector<std::string_view>& names, std::string_view belongs_to) const;

 private:
  struct Flag {
    CLI::Option* option = nullptr;
    std::string text;
    bool on = false;
  };

  void apply(training::Settings& settings) const;

  std::map<std::string, Flag> flags_;
};

}  // namespace cdgrab::cli
