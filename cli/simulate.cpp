// SPDX-License-Identifier: Apache-2.0
// cdgrab simulate: orders of many workers in one process.
#include "simulate/simulate.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string_view>

#include "cdgrab/error.hpp"
#include "cdgrab/shares.hpp"
#include "commands.hpp"
#include "launcher.hpp"
#include "output_file.hpp"
#include "terminal.hpp"
#include "whole_number.hpp"

namespace cdgrab::cli {
namespace {

void run_simulate(const SimulateOptions& options) {
  if (launched_rank() > 0) return;  // one process does it all
  if (!options.report.empty()) require_writable(options.report, "--report");
  const auto done = [&](const SimulateResult& so_far) {
    if (options.json) print_simulate_lane(so_far);
  };
  const SimulateResult result =
      options.flags->given("task") ? simulate_training(options, done) : simulate_herding(options, done);
  if (options.json)
    print_simulate_summary(options, result);
  else
    print_simulate_table(result);
  if (options.report.empty()) return;
  write_text_file(options.report, simulate_page(options, result), "--report");
  if (!options.quiet) say(fmt::format("wrote {}", options.report));
}

}  // namespace

std::vector<std::size_t> parse_worker_list(const std::string& text) {
  std::vector<std::size_t> list;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (;;) {
    std::size_t workers = 0;
    const auto [rest, error] = std::from_chars(at, end, workers);
    if (error != std::errc{} || workers == 0 || workers > kMaxWorkers || (rest != end && *rest != ','))
      throw UserError("--workers",
                      fmt::format("`{}` is not a list of numbers from 1 to {}; write it as in 4,16,64", text,
                                  kMaxWorkers));
    list.push_back(workers);
    if (rest == end) return list;
    at = rest + 1;
  }
}

void add_simulate(CLI::App& app, const CommandLine& line) {
  auto options = std::make_shared<SimulateOptions>();
  options->words = line.words;
  options->command_line = line.text;
  CLI::App* simulate = app.add_subcommand(
      "simulate", "Orders of many workers in one process: herding of fixed vectors, or training with --task");
  simulate->add_option("--workers", options->workers,
                       "How many, as 4,16,64 (none: 5,10,20,50,100, with --task 4,16,64)");
  simulate->add_option("--orders", options->orders, "Of cd-pair, id-pair and d-rr, with their options")
      ->capture_default_str();
  simulate->add_option("--rounds", options->rounds, "Epochs")
      ->capture_default_str()
      ->check(whole_number(1, 1'000'000));
  simulate->add_option("--dim", options->dim, "Numbers in a vector (herding)")
      ->capture_default_str()
      ->check(whole_number(1, 1'000'000));
  simulate->add_option("--report", options->report, "Write a page with the curves (.html)");
  options->flags = std::make_shared<SettingsFlags>(
      *simulate,
      std::vector<std::string_view>{"order", "epochs", "workers", "overlap", "herding", "average"});
  simulate->add_flag("--json", options->json, "JSON lines on stdout instead of a table");
  simulate->add_flag("--quiet", options->quiet, "Only warnings and errors on stderr");
  simulate->footer(
      "Without --task: --examples vectors (1000000), N(0, 1/dim), dealt to the workers in turn.\n"
      "With --task: --batch examples in a step (64) of all workers together; all else as `cdgrab train`.\n"
      "Examples:\n"
      "  cdgrab simulate\n"
      "  cdgrab simulate --workers 4,64 --examples 100000 --rounds 10 --report simulate.html\n"
      "  cdgrab simulate --task logistic --split dirichlet:0.1 --json");
  simulate->callback([options] { run_simulate(*options); });
}

}  // namespace cdgrab::cli
