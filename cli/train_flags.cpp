// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <utility>

#include "cdgrab/spec.hpp"
#include "commands.hpp"
#include "train.hpp"
#include "whole_number.hpp"

namespace cdgrab::cli {

void add_train(CLI::App& app, const CommandLine& line) {
  auto options = std::make_shared<TrainOptions>();
  options->words = line.words;
  options->command_line = line.text;
  CLI::App* train =
      app.add_subcommand("train", "Train a model in one order, and say how good it is after each epoch");
  options->flags = std::make_shared<SettingsFlags>(*train);
  CLI::Option* out = train->add_option("--out", options->out, "Folder for metrics.jsonl and checkpoints");
  train->add_option("--resume", options->resume, "Go on with the run in this folder, with its settings")
      ->excludes(out);
  train
      ->add_option("--checkpoint-every", options->checkpoint_every,
                   "Steps from checkpoint to checkpoint (0: when an epoch ends, every 10 s at most)")
      ->check(whole_number(0));
  train
      ->add_option("--timeout", options->timeout,
                   "mpirun: seconds that a rank waits for another, and gives up")
      ->capture_default_str()
      ->check(whole_number(1, 1'000'000));
  train->add_flag("--dry-run", options->dry_run, "Say what would be done and what it takes, and do nothing");
  train->add_flag("--json", options->json, "JSON lines on stdout instead of a table");
  train->add_flag("--quiet", options->quiet, "Only warnings and errors on stderr");
  train->footer(describe_specs() +
                "  curriculum      easy to hard, by the losses at the end of the last epoch\n"
                "What is not given is as in the papers; `cdgrab tasks` lists those settings.\n"
                "Examples:\n"
                "  cdgrab train\n"
                "  cdgrab train --task lenet --data mnist --order rr --epochs 20 --lr 1e-2 --out run\n"
                "  cdgrab train --resume run\n"
                "  cdgrab train --order cd-pair --workers 16 --split label\n"
                "  mpirun -np 4 cdgrab train --order cd-pair --out run");
  train->callback([options] { run_train(*options); });
}

}  // namespace cdgrab::cli
