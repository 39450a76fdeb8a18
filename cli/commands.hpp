// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each adds itself to the app and runs when it is the one that was asked for.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace cdgrab::cli {

/// `command_line` is what the user typed, for the records.
void add_herd(CLI::App& app, const std::string& command_line);
void add_inspect(CLI::App& app);

}  // namespace cdgrab::cli
