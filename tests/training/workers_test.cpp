// SPDX-License-Identifier: Apache-2.0
// Runs of many workers, on ranks that are threads.
#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cdgrab/error.hpp"
#include "cdgrab/self_communicator.hpp"
#include "cdgrab/thread_communicator.hpp"
#include "training/ranks.hpp"
#include "training/run.hpp"

namespace cdgrab::training {
namespace {

using OneRun = Run;  // inside a test, Run is something of gtest's

Settings many(const std::string& order, std::size_t workers, const std::string& task = "logistic") {
  Settings settings = default_settings(task);
  settings.order = order;
  settings.workers = workers;
  settings.recipe.epochs = 3;
  settings.recipe.batch = 4;
  settings.source.examples = 45;  // no worker is like another
  return settings;
}

struct Outcome {
  std::uint64_t hash = 0;
  std::vector<Score> scores;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const OneRun& run) {
  Outcome outcome{run.weights_hash(), {}};
  for (const EpochRecord& record : run.records()) outcome.scores.push_back(record.last);
  return outcome;
}

/// What all ranks end with; `from` is a state to begin with, if there is one.
Outcome run_on(std::size_t ranks, const std::shared_ptr<const tasks::Task>& task, const Settings& settings,
               const State* from = nullptr) {
  std::mutex mutex;
  std::vector<Outcome> outcomes;
  run_on_threads(ranks, [&](Communicator& communicator) {
    OneRun run(task, settings, communicator);
    if (from != nullptr) run.load(*from);
    while (!run.finished()) run.step();
    const std::scoped_lock lock(mutex);
    outcomes.push_back(outcome_of(run));
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome, outcomes.front());
  return outcomes.front();
}

State state_after(std::uint64_t steps, std::size_t ranks, const std::shared_ptr<const tasks::Task>& task,
                  const Settings& settings) {
  State state;
  run_on_threads(ranks, [&](Communicator& communicator) {
    OneRun run(task, settings, communicator);
    while (run.steps_done() < steps || run.records().empty()) run.step();
    const State mine = run.state();
    if (communicator.rank() == 0) state = decode_state(encode_state(mine), "test");
  });
  return state;
}

TEST(ManyWorkers, EndWithTheSameWeightsOnAnyNumberOfRanks) {
  const std::vector<std::pair<const char*, bool>> cases = {
      {"cd-pair", false},         {"cd-pair", true},
      {"id-pair", false},         {"d-rr", false},
      {"cd-pair; unit=4", false}, {"cd-pair; unit=4", true},
      {"id-pair; unit=4", false}, {"cd-pair; sketch=sparse:8", false}};
  for (const auto& [order, overlap] : cases) {
    SCOPED_TRACE(std::string(order) + (overlap ? " overlap" : ""));
    Settings settings = many(order, 3);
    const auto task = open(settings);
    const Outcome one = run_on(1, task, settings);
    settings.overlap = overlap;
    for (const std::size_t ranks : {1U, 2U, 3U, 5U}) EXPECT_EQ(run_on(ranks, task, settings), one) << ranks;
  }
}

TEST(ManyWorkers, LearnOnAModelOfManyLayersInFloat64AndWithAveragedWeights) {
  Settings settings = many("cd-pair", 4, "lenet");
  settings.recipe.lr = 0.02;
  settings.source.wide = true;
  settings.average = Average::kTail;
  const auto task = open(settings);
  const Outcome one = run_on(1, task, settings);
  EXPECT_EQ(run_on(2, task, settings), one);
  EXPECT_LT(one.scores.back().loss, one.scores.front().loss);
}

TEST(ManyWorkers, OneOfThemIsTheOrderOfOneWorker) {
  Settings settings = many("cd-pair", 1);
  const auto task = open(settings);
  const Outcome coordinated = run_on(1, task, settings);
  settings.order = "id-pair";
  EXPECT_EQ(run_on(1, task, settings), coordinated);
  settings.order = "pair";
  EXPECT_EQ(run_on(1, task, settings), coordinated);
  settings.order = "d-rr";
  const Outcome random = run_on(1, task, settings);
  settings.order = "rr";
  EXPECT_EQ(run_on(1, task, settings), random);
}

TEST(ManyWorkers, GoOnFromAnyStepOnAnyNumberOfRanksAsIfTheyHadNeverStopped) {
  for (const char* order : {"cd-pair", "id-pair", "d-rr", "cd-pair; unit=4"}) {
    SCOPED_TRACE(order);
    const Settings settings = many(order, 3);
    const auto task = open(settings);
    const Outcome whole = run_on(1, task, settings);
    for (const std::uint64_t steps : {0U, 3U, 5U, 11U}) {
      const State state = state_after(steps, steps % 2 == 0 ? 2 : 3, task, settings);
      const State alone = state_after(steps, 1, task, settings);
      EXPECT_TRUE(state.part("sampler") == alone.part("sampler")) << steps;
      EXPECT_TRUE(state.array("weights") == alone.array("weights")) << steps;
      for (const std::size_t ranks : {1U, 2U})
        EXPECT_EQ(run_on(ranks, task, settings, &state), whole) << steps;
    }
  }
}

TEST(ManyWorkers, AnotherNumberOfThemTakesOverAndSaysSo) {
  for (const char* order : {"cd-pair", "id-pair", "d-rr"}) {
    SCOPED_TRACE(order);
    Settings settings = many(order, 3);
    settings.recipe.schedule = tasks::Schedule::kLinear;
    const auto task = open(settings);
    const State state = state_after(6, 2, task, settings);  // two steps of four into the second epoch
    settings.workers = 2;
    SelfCommunicator alone;
    OneRun run(task, settings, alone);
    const std::string changes = run.load(state);
    EXPECT_NE(changes.find("2 workers took over from 3"), std::string::npos) << changes;
    EXPECT_EQ(run.steps_per_epoch(), 6U);
    EXPECT_GE(run.steps_done(), 6U);
    EXPECT_LT(run.steps_done(), 12U);
    while (!run.finished()) run.step();
    EXPECT_EQ(run.steps_done(), 18U);
    EXPECT_EQ(run.records().size(), 4U);
    EXPECT_EQ(run.settings().workers, 2U);
    EXPECT_LT(run.records().back().last.loss, run.records().front().last.loss);
  }
}

TEST(ManyWorkers, GetTheSplitThatWasAskedFor) {
  Settings settings = many("cd-pair", 4);
  const auto task = open(settings);
  const Outcome even = run_on(1, task, settings);
  for (const char* split : {"label", "dirichlet:0.1"}) {
    settings.split = split;
    const Outcome other = run_on(1, task, settings);
    EXPECT_NE(other.hash, even.hash) << split;
    EXPECT_EQ(run_on(2, task, settings), other) << split;
  }
  settings = many("cd-pair", 4, "mlp");
  settings.split = "label";
  try {
    OneRun run(open(settings), settings);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("[--split] `label` with the task `mlp`"), std::string::npos)
        << error.what();
  }
}

TEST(ManyWorkers, MayBeMoreThanExamples) {
  Settings settings = many("cd-pair", 7);
  settings.source.examples = 5;
  const auto task = open(settings);
  EXPECT_EQ(run_on(2, task, settings), run_on(1, task, settings));
}

TEST(ManyWorkers, AllStopWhereOneDiverges) {
  Settings settings = many("cd-pair", 3, "mlp");
  settings.sizes.width = 8;
  settings.sizes.length = 6;
  settings.recipe.lr = 1e20;
  const auto task = open(settings);
  run_on_threads(3, [&](Communicator& communicator) {
    OneRun run(task, settings, communicator);
    while (!run.finished()) run.step();
    EXPECT_TRUE(run.records().back().diverged);
    EXPECT_EQ(run.state().contains("sampler.spec"), true);
  });
}

TEST(ManyWorkers, ARankWithOtherWeightsIsNamed) {
  try {
    run_on_threads(4, [](Communicator& communicator) {
      require_same_weights(communicator, communicator.rank() == 2 ? 7 : 5);
    });
    FAIL();
  } catch (const CommunicationError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 2 (0000000000000007)"), std::string::npos) << error.what();
  }
}

TEST(ManyWorkers, ARankThatLeavesIsNamedWithTheStep) {
  const Settings settings = many("cd-pair", 3);
  const auto task = open(settings);
  std::mutex mutex;
  std::vector<std::string> heard;
  EXPECT_ANY_THROW(run_on_threads(3, [&](Communicator& communicator) {
    OneRun run(task, settings, communicator);
    try {
      while (!run.finished()) {
        if (communicator.rank() == 1 && run.steps_done() == 5) throw std::runtime_error("gone");
        run.step();
      }
    } catch (const CommunicationError& error) {
      const std::scoped_lock lock(mutex);
      heard.emplace_back(error.what());
      throw;
    }
  }));
  ASSERT_EQ(heard.size(), 2U);
  for (const std::string& what : heard) {
    EXPECT_NE(what.find("epoch 2, step "), std::string::npos) << what;  // 5, or 4 if it was not through yet
    EXPECT_NE(what.find("rank 1"), std::string::npos) << what;
  }
}

TEST(ManyWorkers, AnOrderOfOneWorkerRefusesSeveralRanks) {
  Settings settings = many("pair", 1);
  const auto task = open(settings);
  EXPECT_THROW(run_on(2, task, settings), UserError);
}

}  // namespace
}  // namespace cdgrab::training
