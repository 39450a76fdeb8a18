// SPDX-License-Identifier: Apache-2.0
// cdgrab train and cdgrab tasks, as a user or a script meets them. Each start loads torch, which takes a
// second: a test makes few.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "fixture.hpp"

namespace cdgrab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::has;
using test::json_lines;
using test::Outcome;
using test::read_all;
using test::RunOptions;

using Words = std::vector<std::string>;

class Train : public test::Cli {
 protected:
  /// 500 steps in 10 epochs, under a second.
  static Words small(const Words& more = {}) {
    Words words = {"train", "--examples", "400", "--batch", "8", "--epochs", "10", "--average", "tail"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  static json summary_of(const Outcome& outcome) { return json_lines(outcome.out).back(); }

  /// metrics.jsonl without what a clock decides.
  [[nodiscard]] std::vector<json> metrics(const std::string& folder) const {
    auto lines = json_lines(read_all(in(folder) / "metrics.jsonl"));
    for (json& line : lines) line.erase("seconds");
    return lines;
  }
};

TEST_F(Train, TasksAreListedWithTheirSettings) {
  const Outcome words = run({"tasks"});
  EXPECT_EQ(words.exit_code, 0);
  for (const char* name : {"logistic", "lenet", "mlp", "lstm", "gpt", "--clip 0.25", "WikiText-2"})
    EXPECT_TRUE(has(words.out, name)) << name;
  const auto lines = json_lines(run({"tasks", "--json"}).out);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0]["defaults"]["lr"], 0.005);
  EXPECT_EQ(lines[4]["defaults"]["optimizer"], "adamw");
}

TEST_F(Train, WritesALinePerEpochAndSaysTheSameOnStdout) {
  const Outcome outcome = run(small({"--out", "run", "--json", "--herding"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), 12U);
  const auto written = json_lines(read_all(in("run") / "metrics.jsonl"));
  ASSERT_EQ(written.size(), 11U);
  for (std::size_t epoch = 0; epoch < written.size(); ++epoch) {
    json line = lines[epoch];
    EXPECT_EQ(line["event"], "epoch");
    line.erase("event");
    EXPECT_EQ(line, written[epoch]);
    EXPECT_EQ(line["epoch"], epoch);
    EXPECT_EQ(line["metric"], "accuracy");
    EXPECT_EQ(line.contains("average_train_loss"), epoch > 5);
    EXPECT_EQ(line.contains("herding"), epoch > 0);
  }
  EXPECT_GT(written[3]["seconds"]["observing"], 0.0);
  EXPECT_LT(written[10]["train_loss"], written[0]["train_loss"]);
  EXPECT_EQ(lines[11]["event"], "summary");
  EXPECT_EQ(lines[11]["settings"]["order"], "pair");
  EXPECT_EQ(lines[11]["train_loss"], written[10]["train_loss"]);
}

TEST_F(Train, APlainTableHasTheSameFigures) {
  const Outcome outcome = run({"train", "--examples", "40", "--epochs", "2", "--order", "rr"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "train loss"));
  EXPECT_TRUE(has(outcome.out, "\nweights "));
  EXPECT_TRUE(has(outcome.err, "order: rr"));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 6);
  EXPECT_FALSE(has(outcome.out + outcome.err, "\033"));
}

TEST_F(Train, ADryRunWritesNothing) {
  const Outcome outcome = run(small({"--dry-run", "--out", "run", "--json"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json plan = summary_of(outcome);
  EXPECT_EQ(plan["steps"], 500);
  EXPECT_EQ(plan["examples"], 400);
  EXPECT_GT(plan["memory"]["order"], 0);
  EXPECT_EQ(files(), 0U);
  const Outcome words = run(small({"--dry-run"}));
  EXPECT_TRUE(has(words.out, "10 epochs of 50 steps")) << words.out;
}

TEST_F(Train, KilledAtAnyMomentItGoesOnToTheSameEnd) {
  const auto into = [&](const std::string& folder, const std::string& every) {
    return Words{"train", "--examples", "400",     "--batch", "8",    "--epochs",           "60", "--average",
                 "tail",  "--json",     "--quiet", "--out",   folder, "--checkpoint-every", every};
  };
  const Outcome whole = run(into("whole", "0"));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  Words words = into("killed", "1");  // so that most moments are in the middle of writing
  for (const char* epoch : {"2", "9", "17"}) {
    RunOptions options;
    options.signal = SIGKILL;
    options.after = std::string("\"epoch\":") + epoch + ",";
    EXPECT_EQ(run(words, options).exit_code, 128 + SIGKILL) << epoch;
    words = {"train", "--resume", "killed", "--json", "--quiet", "--checkpoint-every", "3"};
  }
  const Outcome last = run(words);
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(summary_of(last)["weights_hash"], summary_of(whole)["weights_hash"]);
  EXPECT_EQ(metrics("killed"), metrics("whole"));
  EXPECT_EQ(metrics("killed").size(), 61U);
  EXPECT_EQ(std::distance(fs::directory_iterator(in("killed")), {}), 2);
}

TEST_F(Train, CtrlCSavesAndSaysHowToGoOn) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string folder = "run" + std::to_string(signal);
    RunOptions options;
    options.signal = signal;
    options.after = "\"epoch\":2";
    Words words = small({"--out", folder, "--json", "--epochs", "400"});
    words.erase(words.begin() + 5, words.begin() + 7);  // the other --epochs
    const Outcome stopped = run(words, options);
    EXPECT_EQ(stopped.exit_code, 130) << stopped.err;
    EXPECT_TRUE(has(stopped.err, "go on with `cdgrab train --resume " + folder + "`")) << stopped.err;
    EXPECT_TRUE(fs::exists(in(folder) / "checkpoint.safetensors"));
    EXPECT_GE(metrics(folder).size(), 3U);
  }
}

TEST_F(Train, WithoutAFolderCtrlCSavesNothing) {
  RunOptions options;
  options.signal = SIGINT;
  options.after = "\"epoch\":1";
  const Outcome stopped = run({"train", "--json", "--epochs", "1000"}, options);
  EXPECT_EQ(stopped.exit_code, 130);
  EXPECT_TRUE(has(stopped.err, "nothing was saved, since there is no --out")) << stopped.err;
}

TEST_F(Train, ARunIsNotOverwrittenAndGoesOnWithItsOwnSettingsOnly) {
  ASSERT_EQ(run(small({"--out", "run", "--quiet"})).exit_code, 0);
  expect_failure(2, small({"--out", "run"}), "there is a run in \"run\"; go on with it by --resume");
  expect_failure(4, {"train", "--resume", "run", "--lr", "0.25"},
                 "[--lr] `0.25`, but the run was started with `0.005`");
  const Outcome again = run({"train", "--resume", "run", "--lr", "5e-3", "--json"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(json_lines(again.out).size(), 1U);
}

TEST_F(Train, ManyWorkersAreSimulatedInOneProcess) {
  const Words words =
      small({"--order", "cd-pair", "--workers", "5", "--split", "label", "--json", "--out", "run"});
  const Outcome outcome = run(words);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.err, "5 workers on 1 rank; split: label")) << outcome.err;
  EXPECT_EQ(summary_of(outcome)["settings"]["workers"], 5);
  EXPECT_LT(metrics("run")[10]["train_loss"], metrics("run")[0]["train_loss"]);
}

TEST_F(Train, AnotherNumberOfWorkersGoesOnAndTheLogSaysSo) {
  RunOptions options;
  options.signal = SIGINT;
  options.after = "\"epoch\":2";
  const Outcome stopped = run({"train", "--examples", "400", "--batch", "8", "--epochs", "40", "--order",
                               "cd-pair", "--workers", "5", "--json", "--out", "run"},
                              options);
  EXPECT_EQ(stopped.exit_code, 130) << stopped.err;
  expect_failure(4, {"train", "--resume", "run", "--split", "label"}, "[--split]");
  const Outcome last = run({"train", "--resume", "run", "--workers", "3", "--overlap", "--json"});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_TRUE(has(last.err, "3 workers took over from 5")) << last.err;
  EXPECT_EQ(metrics("run").size(), 41U);
}

TEST_F(Train, FlagsOfManyWorkersAreRefusedWithTheReason) {
  expect_failure(2, {"train", "--workers", "4"},
                 "[--workers] 4 with `pair`, which orders all examples for one worker");
  expect_failure(2, {"train", "--overlap"}, "[--overlap]");
  expect_failure(2, {"train", "--order", "cd-pair", "--split", "labels"}, "[--split] `labels`");
  expect_failure(2, {"train", "--order", "cd-pair", "--task", "mlp", "--split", "label"},
                 "with the task `mlp`, whose examples have no labels");
  expect_failure(2, {"train", "--order", "cd-pair", "--timeout", "0"}, "must be a whole number from 1");
  expect_failure(2, {"simulate", "--task", "logistic", "--workers", "3"}, "do not go evenly to 3 workers");
  expect_failure(2, {"simulate", "--task", "logistic", "--orders", "rr"}, "[--workers]");
}

TEST_F(Train, SimulateTrainsEveryOrderOnEveryNumberOfWorkers) {
  const Outcome outcome =
      run({"simulate", "--task", "logistic", "--examples", "200", "--workers", "2,4", "--split",
           "dirichlet:0.3", "--rounds", "2", "--batch", "8", "--report", "page.html", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), 2U * 3U * 3U + 1U);
  const json& lanes = lines.back()["lanes"];
  ASSERT_EQ(lanes.size(), 6U);
  EXPECT_EQ(lanes[3]["workers"], 4);
  EXPECT_GT(lanes[0]["bytes_per_step"]["averaging"], 0.0);
  EXPECT_GT(lanes[0]["bytes_per_step"]["vectors"], 0.0);
  EXPECT_TRUE(has(read_all(in("page.html")), "training loss on logistic"));
}

TEST_F(Train, SlipsAreNamedBeforeTorchIsLoaded) {
  expect_failure(2, {"train", "--ordr", "rr"}, "the nearest is `--order`");
  expect_failure(2, {"trian"}, "the nearest is `train`");
  const auto begin = std::chrono::steady_clock::now();
  expect_failure(2, {"train", "--checkpoint-every", "-1"}, "must be a whole number");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST_F(Train, WrongValuesAreUsageErrors) {
  expect_failure(2, {"train", "--task", "lenett"}, "the nearest is `lenet`");
  expect_failure(2, {"train", "--order", "pari"}, "the nearest is `pair`");
  expect_failure(2, {"train", "--lr", "-1"}, "[--lr] `-1` is not allowed");
  expect_failure(2, {"train", "--epochs", "0"}, "[--epochs]");
  expect_failure(2, {"train", "--epochs", "3.5"}, "must be a whole number");
  expect_failure(2, {"train", "--batch", "5000"}, "[--batch] 5000 examples in a step, but there are 4000");
  expect_failure(2, {"train", "--schedule", "cosinus"}, "the nearest is `cosine`");
}

TEST_F(Train, WhatCannotBeReadOrWrittenIsBadData) {
  std::ofstream(in("file")) << "1 1:1\n2 oops\n";
  expect_failure(3, {"train", "--data", "file"}, "file");
  expect_failure(3, {"train", "--data", "missing"}, "missing");
  expect_failure(3, {"train", "--out", "file/run"}, "cannot make the folder \"file/run\"");
  expect_failure(3, {"train", "--resume", "nowhere"}, "there is no \"nowhere/checkpoint.safetensors\"");
  expect_failure(3, {"train", "--order", "file; path=none.npy"}, "none.npy");
}

TEST_F(Train, ARunThatDivergesSaysWhereAndKeepsItsFigures) {
  const Outcome outcome = run({"train", "--task", "mlp", "--examples", "64", "--lr", "1e20", "--out", "run"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(has(outcome.err, "diverged in epoch 1: a loss is not finite; try an --lr below 1e+20"))
      << outcome.err;
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1]["diverged"], true);
  EXPECT_TRUE(lines[1]["train_loss"].is_null());
}

}  // namespace
}  // namespace cdgrab
