// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each adds itself to the app and runs when it is the one that was asked for.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace cdgrab::cli {

/// What the user typed.
struct CommandLine {
  std::vector<std::string> words;
  std::string text;  ///< typed into a shell, it runs the same command
};

void add_herd(CLI::App& app, const std::string& command_line);
void add_inspect(CLI::App& app);
void add_tasks(CLI::App& app);
void add_train(CLI::App& app, const CommandLine& line);
void add_simulate(CLI::App& app, const CommandLine& line);
void add_compare(CLI::App& app, const CommandLine& line);

}  // namespace cdgrab::cli
