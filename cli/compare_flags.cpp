// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>

#include "cdgrab/spec.hpp"
#include "commands.hpp"
#include "compare_options.hpp"
#include "whole_number.hpp"

namespace cdgrab::cli {

void add_compare(CLI::App& app, const CommandLine& line) {
  auto options = std::make_shared<CompareOptions>();
  options->words = line.words;
  options->command_line = line.text;
  CLI::App* compare = app.add_subcommand(
      "compare", "Train in several orders, each at its best rate, and say whether ordering helps");
  compare->add_option("--orders", options->orders, "Orders to compare with rr, see below")
      ->capture_default_str();
  compare
      ->add_option("--lr", options->rates,
                   "Learning rates, as 1e-3,3e-3,1e-2 (none: 0.3, 1 and 3 times the task's)")
      ->type_name("LIST");
  compare
      ->add_option("--schedule", options->schedules,
                   "Of the rate: some of constant, cosine, linear, plateau (none: the task's)")
      ->type_name("LIST");
  compare
      ->add_option("--average", options->averages,
                   "Judge the weights, the mean of the last half's, or both: none,tail")
      ->type_name("LIST")
      ->capture_default_str();
  compare
      ->add_option("--seeds", options->seeds,
                   "How many: initial weights and first order are the same for all orders")
      ->check(whole_number(1, 10'000))
      ->capture_default_str();
  compare->add_option("--seed", options->seed, "The first of them")
      ->check(whole_number(0))
      ->capture_default_str();
  compare->add_option("--jobs", options->jobs, "Runs at a time (0: as many as there are cores)")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
  compare->add_option("--out", options->out,
                      "Folder for report.html and the finished runs (none: compare-TASK)");
  options->flags = std::make_shared<SettingsFlags>(
      *compare, std::vector<std::string_view>{"order", "lr", "schedule", "average", "seed", "workers",
                                              "split", "overlap"});
  compare->add_flag("--dry-run", options->dry_run, "Say what would be trained, and do nothing");
  compare->add_flag("--json", options->json, "JSON lines on stdout instead of tables");
  compare->add_flag("--quiet", options->quiet, "Only warnings and errors on stderr");
  compare->footer(describe_specs() +
                  "  curriculum      easy to hard, by the losses at the end of the last epoch\n"
                  "What is not given is as in the papers; `cdgrab tasks` lists those settings.\n"
                  "The same command again trains only what is missing; so do more rates, orders or seeds.\n"
                  "Examples:\n"
                  "  cdgrab compare\n"
                  "  cdgrab compare --orders rr,pair,mean --lr 1e-3,1e-2,1e-1 --schedule constant,cosine\n"
                  "  cdgrab compare --task lenet --data mnist --epochs 20 --seeds 5 --out lenet");
  compare->callback([options] { run_compare(*options); });
}

}  // namespace cdgrab::cli
