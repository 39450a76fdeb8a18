// SPDX-License-Identifier: Apache-2.0
// The cdgrab command: finds the subcommand, runs it, and turns errors into exit codes (docs/cli.md).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "cdgrab/error.hpp"
#include "cdgrab/nearest.hpp"
#include "cdgrab/version.hpp"
#include "commands.hpp"
#include "interrupt.hpp"
#include "terminal.hpp"

namespace cdgrab::cli {
namespace {

enum ExitCode { kDone = 0, kOther = 1, kUsage = 2, kBadData = 3, kMismatch = 4, kInterrupted = 130 };

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("-_./=:,+@%").find(c) != std::string_view::npos;
}

/// Typed into a shell again, this runs the same command.
std::string join_command_line(int argc, char** argv) {
  std::string line;
  for (int i = 0; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (i > 0) line += ' ';
    if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

/// What to say about a word that nothing took.
std::string explain_word(const CLI::App& app, const std::string& word) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const bool is_flag = word.rfind('-', 0) == 0;
  if (!is_flag && !chosen.empty()) {
    return fmt::format("unexpected argument `{}`; {} takes one file at most", word,
                       chosen.front()->get_name());
  }
  const std::vector<std::string> allowed =
      is_flag ? flags_of(chosen.empty() ? app : *chosen.front()) : subcommands_of(app);
  const std::vector<std::string_view> words(allowed.begin(), allowed.end());
  return fmt::format("unknown {} `{}`; the nearest is `{}`; allowed: {}", is_flag ? "option" : "command",
                     word, nearest_word(word.substr(0, word.find('=')), words), fmt::join(allowed, ", "));
}

int report_usage(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(true);
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (!unknown.empty()) {
    say_error(explain_word(app, unknown.front()));
  } else if (chosen.empty()) {
    say_error(fmt::format("no command given; allowed: {}", fmt::join(subcommands_of(app), ", ")));
  } else {
    say_error(error.what());
  }
  say(fmt::format("try `cdgrab {}--help`", chosen.empty() ? "" : chosen.front()->get_name() + " "));
  return kUsage;
}

void require_stdout_written() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw std::runtime_error(
        fmt::format("cannot write to stdout: {}; the output is not complete", std::strerror(errno)));
  }
}

int parse_and_run(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return report_usage(app, error);
    app.exit(error);
  }
  require_stdout_written();
  return kDone;
}

int run(int argc, char** argv) {
  CLI::App app("cdgrab: the order in which your model should see its examples", "cdgrab");
  app.set_version_flag("--version", std::string("cdgrab ") + version());
  app.require_subcommand(1);
  app.footer("Exit codes: 0 done, 1 other failure, 2 usage, 3 bad data, 4 state mismatch, 130 interrupted.");
  const CommandLine line{{argv, argv + argc}, join_command_line(argc, argv)};
  add_train(app, line);
  add_compare(app, line);
  add_tasks(app);
  add_herd(app, line.text);
  add_simulate(app, line);
  add_inspect(app);
  return parse_and_run(app, argc, argv);
}

int fail(ExitCode code, std::string_view message) {
  std::fflush(stdout);
  say_error(message);
  return code;
}

}  // namespace
}  // namespace cdgrab::cli

int main(int argc, char** argv) {
  using namespace cdgrab::cli;
  watch_interrupts();
  try {
    return run(argc, argv);
  } catch (const Interrupted& interrupted) {
    return fail(kInterrupted, "interrupted; " + interrupted.outcome);
  } catch (const cdgrab::UserError& error) {
    return fail(kUsage, error.what());
  } catch (const cdgrab::StateMismatch& error) {
    return fail(kMismatch, error.what());
  } catch (const cdgrab::FileError& error) {
    return fail(kBadData, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kOther, "out of memory; use fewer or shorter vectors, or a smaller --batch");
  } catch (const std::exception& error) {
    return fail(kOther, error.what());
  }
}
