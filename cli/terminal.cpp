// SPDX-License-Identifier: Apache-2.0
#include "terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "launcher.hpp"

namespace cdgrab::cli {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

void say_as(std::string_view colour, std::string_view message) {
  const bool coloured = stderr_is_terminal() && !is_set("NO_COLOR");
  const std::string who = launched_rank() == 0 ? "cdgrab:" : fmt::format("cdgrab: rank {}:", launched_rank());
  fmt::print(stderr, "{}{}{} {}\n", coloured ? colour : "", who, coloured ? "\033[0m" : "", message);
}

}  // namespace

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

void say(std::string_view message) { say_as("\033[2m", message); }

void say_error(std::string_view message) { say_as("\033[1;31m", message); }

Progress::Progress(bool quiet) : active_(!quiet && stderr_is_terminal()) {}

Progress::~Progress() { clear(); }

void Progress::show(std::string_view text) {
  if (!active_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kRedraw;
  fmt::print(stderr, "\r\033[K{}", text);
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace cdgrab::cli
