// SPDX-License-Identifier: Apache-2.0
#include "training/run.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cdgrab/error.hpp"
#include "tests/torture/at_length.hpp"

namespace cdgrab::training {
namespace {

using OneRun = Run;  // inside a test, Run is something of gtest's

/// A run of a second at most.
Settings tiny(const std::string& task) {
  Settings settings = default_settings(task);
  settings.recipe.epochs = 4;
  settings.recipe.batch = 8;
  settings.source.examples = 30;  // the last batch is short
  if (settings.sizes.width > 0) settings.sizes.width = 8;
  if (settings.sizes.length > 0) settings.sizes.length = 6;
  return settings;
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const tasks::TaskInfo& task : tasks::all_tasks()) names.emplace_back(task.name);
  return names;
}

void expect_same(const OneRun& a, const OneRun& b) {
  EXPECT_EQ(a.weights_hash(), b.weights_hash());
  EXPECT_EQ(a.average(), b.average());
  EXPECT_EQ(a.steps_done(), b.steps_done());
  ASSERT_EQ(a.records().size(), b.records().size());
  for (std::size_t i = 0; i < a.records().size(); ++i) {
    const EpochRecord& x = a.records()[i];
    const EpochRecord& y = b.records()[i];
    EXPECT_EQ(x.epoch, y.epoch);
    EXPECT_EQ(x.last, y.last) << i;
    EXPECT_EQ(x.average, y.average) << i;
    EXPECT_EQ(x.lr, y.lr) << i;
    ASSERT_EQ(x.herding.has_value(), y.herding.has_value()) << i;
    EXPECT_EQ(x.herding ? x.herding->used.l2 : 0.0, y.herding ? y.herding->used.l2 : 0.0) << i;
  }
}

void finish(OneRun& run) {
  while (!run.finished()) run.step();
}

/// Stops after every `every`-th step, and goes on in another run from the bytes of the state.
void expect_resumable(const Settings& settings, std::uint64_t every) {
  SCOPED_TRACE(settings.task + " " + settings.order);
  const auto task = open(settings);
  OneRun whole(task, settings);
  std::vector<std::vector<std::byte>> states = {encode_state(whole.state())};
  while (!whole.finished()) {
    whole.step();
    if (whole.steps_done() % every == 0) states.push_back(encode_state(whole.state()));
  }
  for (const auto& bytes : states) {
    OneRun resumed(task, settings);
    resumed.load(decode_state(bytes, "test"));
    finish(resumed);
    expect_same(whole, resumed);
  }
}

class EveryRun : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryRun, GoesOnFromAnyStepAsIfItHadNeverStopped) {
  Settings settings = tiny(GetParam());
  settings.average = Average::kTail;
  expect_resumable(settings, torture::at_length() ? 1 : 3);
}

TEST_P(EveryRun, LearnsInEveryOrder) {
  for (const char* order : {"rr", "mean", "pair", "curriculum"}) {
    Settings settings = tiny(GetParam());
    settings.order = order;
    settings.recipe.epochs = 3;
    if (settings.task == "lenet") settings.recipe.lr = 0.02;
    if (settings.task == "logistic") settings.recipe.lr = 0.05;
    OneRun run(open(settings), settings);
    finish(run);
    EXPECT_LT(run.records().back().last.loss, run.records().front().last.loss) << order;
    EXPECT_EQ(run.records().size(), 4U);
  }
}

/// Observing changes no gradient, and the first order does not depend on how the next ones are made.
TEST_P(EveryRun, HasTheSameFirstEpochInEveryOrder) {
  Settings settings = tiny(GetParam());
  const auto task = open(settings);
  std::vector<std::uint64_t> hashes;
  for (const char* order : {"rr", "so", "flipflop", "mean", "pair", "recursive", "curriculum"}) {
    settings.order = order;
    OneRun run(task, settings);
    run.epoch();
    run.epoch();
    hashes.push_back(run.weights_hash());
  }
  for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes.front());
}

INSTANTIATE_TEST_SUITE_P(All, EveryRun, ::testing::ValuesIn(all_names()),
                         [](const auto& name) { return name.param; });

TEST(Run, GoesOnInEveryOrder) {
  for (const char* order : {"rr", "so", "swr", "flipflop", "block-reversal", "fixed", "curriculum", "mean",
                            "batch", "recursive; depth=2", "recursive-pair", "greedy", "pair; unit=8",
                            "pair; sketch=gauss:8", "mean; sign=walk,c=30", "pair; sketch=kron:2"}) {
    Settings settings = tiny("logistic");
    settings.order = order;
    expect_resumable(settings, 5);
  }
}

TEST(Run, GoesOnWithEveryScheduleAndOptimizer) {
  for (const char* schedule : {"constant", "cosine", "linear", "plateau"}) {
    Settings settings = tiny("logistic");
    settings.recipe.schedule = tasks::parse_schedule(schedule);
    settings.recipe.patience = 0;
    settings.recipe.l2 = 1e-3;
    settings.recipe.clip = 0.5;
    expect_resumable(settings, 3);
    settings.recipe.optimizer = tasks::Optimizer::kAdamW;
    settings.source.wide = true;
    expect_resumable(settings, 3);
  }
}

TEST(Run, LeavesOutShortBatchesAndGoesOn) {
  for (const char* order : {"rr", "pair", "curriculum"}) {
    Settings settings = tiny("logistic");
    settings.order = order;
    settings.recipe.drop_last = true;
    EXPECT_EQ(OneRun(open(settings), settings).steps_per_epoch(), 3U);  // 30 examples by 8
    expect_resumable(settings, 2);
  }
}

TEST(Run, AverageIsTheMeanOfTheLastHalfsWeightsAndDisturbsNothing) {
  Settings settings = tiny("logistic");
  const auto task = open(settings);
  OneRun plain(task, settings);
  finish(plain);
  settings.average = Average::kTail;
  OneRun run(task, settings);
  std::vector<std::vector<double>> iterates;
  run.epoch();
  while (!run.finished()) {
    run.step();
    if (run.steps_done() > 2 * run.steps_per_epoch()) iterates.push_back(run.weights());
  }
  ASSERT_EQ(iterates.size(), 2 * run.steps_per_epoch());
  for (std::size_t i = 0; i < run.facts().parameters; ++i) {
    double sum = 0.0;
    for (const auto& weights : iterates) sum += weights[i];
    EXPECT_EQ(run.average()[i], sum / static_cast<double>(iterates.size()));
  }
  EXPECT_EQ(run.weights_hash(), plain.weights_hash());
  EXPECT_FALSE(run.records()[2].average.has_value());
  EXPECT_TRUE(run.records()[3].average.has_value());
}

TEST(Run, OfTheSameSeedIsTheSameAndOfAnotherAnother) {
  Settings settings = tiny("lenet");
  settings.recipe.epochs = 1;
  const auto task = open(settings);
  OneRun a(task, settings);
  OneRun b(task, settings);
  while (!a.finished()) {  // by turns
    a.step();
    b.step();
  }
  expect_same(a, b);
  settings.seed = 1;
  OneRun c(task, settings);
  c.step();
  EXPECT_NE(c.records().front().last, a.records().front().last);
}

TEST(Run, RecordsTheHerdingBoundAndGoesOnWithIt) {
  Settings settings = tiny("logistic");
  settings.herding = true;
  OneRun run(open(settings), settings);
  run.epoch();
  const EpochRecord& record = run.epoch();
  ASSERT_TRUE(record.herding.has_value());
  EXPECT_GT(record.herding->used.l2, 0.0);
  EXPECT_LT(record.herding->next.l2, record.herding->used.l2);
  for (const char* order : {"pair", "rr"}) {
    settings.order = order;
    expect_resumable(settings, 3);
  }
}

TEST(Run, EndsWhereALossIsNotFinite) {
  Settings settings = tiny("mlp");
  settings.recipe.lr = 1e20;
  OneRun run(open(settings), settings);
  finish(run);
  EXPECT_TRUE(run.records().back().diverged);
  EXPECT_LT(run.records().size(), 5U);
  EXPECT_THROW(run.step(), UserError);
  OneRun again(open(settings), settings);
  again.load(decode_state(encode_state(run.state()), "test"));
  EXPECT_TRUE(again.finished());
}

TEST(Run, RefusesBatchesOfMoreThanThereIs) {
  Settings settings = tiny("logistic");
  settings.recipe.batch = 31;
  EXPECT_THROW(OneRun(open(settings), settings), UserError);
}

TEST(Run, RefusesTheStateOfOtherSettingsByName) {
  Settings settings = tiny("logistic");
  const auto task = open(settings);
  const State state = OneRun(task, settings).state();
  settings.recipe.lr = 0.25;
  OneRun other(task, settings);
  try {
    other.load(state);
    FAIL();
  } catch (const StateMismatch& error) {
    EXPECT_NE(std::string(error.what()).find("'lr' is 0.005"), std::string::npos) << error.what();
  }
}

TEST(Run, RefusesTheStateOfOtherExamples) {
  Settings settings = tiny("logistic");
  const State state = OneRun(open(settings), settings).state();
  settings.source.data_seed = 1;
  const auto other = open(settings);
  settings.source.data_seed = 0;
  OneRun run(other, settings);
  EXPECT_THROW(run.load(state), StateMismatch);
}

TEST(Run, RefusesAStateThatIsNotOfARun) { EXPECT_THROW(settings_of(State()), StateMismatch); }

TEST(Run, KnowsWhatItTakes) {
  Settings settings = tiny("logistic");
  const auto task = open(settings);
  OneRun run(task, settings);
  EXPECT_EQ(run.steps_per_epoch(), 4U);
  EXPECT_EQ(run.memory().model, 2 * 4 * run.facts().parameters);
  EXPECT_EQ(run.memory().optimizer, 4 * run.facts().parameters);
  settings.order = "rr";
  EXPECT_LT(OneRun(task, settings).memory().order, run.memory().order);
}

}  // namespace
}  // namespace cdgrab::training
