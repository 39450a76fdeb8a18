// SPDX-License-Identifier: Apache-2.0
// cdgrab simulate without a task, as a user or a script meets it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/random.hpp"
#include "cdgrab/self_communicator.hpp"
#include "fixture.hpp"

namespace cdgrab {
namespace {

using nlohmann::json;
using test::has;
using test::json_lines;
using test::Outcome;
using test::read_all;

class Simulate : public test::Cli {};

/// The definition, word by word: at each time the next vector of every worker enters.
double dull_bound(const std::vector<float>& rows, std::size_t dim, const DistributedSampler& sampler) {
  const std::size_t n = rows.size() / dim;
  std::vector<double> mean(dim);
  for (std::size_t i = 0; i < rows.size(); ++i)
    mean[i % dim] += static_cast<double>(rows[i]) / static_cast<double>(n);
  double worst = 0.0;
  for (std::size_t until = 1; until <= n; ++until) {
    std::vector<double> sum(dim);
    for (std::size_t w = 0; w < sampler.workers(); ++w) {
      const auto order = sampler.order(w);
      for (std::size_t t = 0; t < std::min(until, order.size()); ++t)
        for (std::size_t k = 0; k < dim; ++k)
          sum[k] += static_cast<double>(rows[order[t] * dim + k]) - mean[k];
    }
    for (const double s : sum) worst = std::max(worst, std::abs(s));
  }
  return worst;
}

TEST_F(Simulate, BoundsAreThoseOfTheDefinition) {
  constexpr std::size_t kExamples = 101;  // no worker is like another
  constexpr std::size_t kDim = 3;
  const Outcome outcome = run({"simulate", "--examples", "101", "--dim", "3", "--workers", "4", "--rounds",
                               "2", "--seed", "5", "--orders", "cd-pair", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), 4U);
  std::vector<float> rows;
  for (std::size_t i = 0; i < kExamples * kDim; ++i)
    rows.push_back(static_cast<float>(normal({5, Purpose::kData, 0, 0}, i) / std::sqrt(3.0)));
  SelfCommunicator alone;
  DistributedOptions options;
  options.seed = 5;
  DistributedSampler sampler(Shares::strided(kExamples, 4), parse_spec("cd-pair"), alone, options);
  for (std::size_t round = 0; round <= 2; ++round) {
    EXPECT_NEAR(lines[round]["linf"].get<double>(), dull_bound(rows, kDim, sampler), 1e-9) << round;
    for (std::size_t step = 0; step < kExamples; ++step) {
      for (std::size_t w = 0; w < 4; ++w)
        for (const Index i : sampler.next(w, 1)) sampler.deposit(w, Rows<float>{&rows[i * kDim], 1, kDim});
      sampler.step();
    }
    sampler.end_epoch();
  }
}

TEST_F(Simulate, CoordinatedStaysFlatWhereIndependentGrowsAndRandomIsFarAbove) {
  const Outcome outcome = run({"simulate", "--examples", "20000", "--workers", "5,50", "--rounds", "8",
                               "--json", "--report", "page.html"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json summary = json_lines(outcome.out).back();
  std::map<std::pair<int, std::string>, double> bound;
  for (const json& lane : summary["lanes"]) bound[{lane["workers"], lane["order"]}] = lane["linf"];
  ASSERT_EQ(bound.size(), 6U);
  EXPECT_LT((bound[{50, "cd-pair"}]), (3.0 * bound[{5, "cd-pair"}]));
  EXPECT_LT((3.0 * bound[{50, "cd-pair"}]), (bound[{50, "id-pair"}]));
  EXPECT_LT((bound[{5, "id-pair"}]), (bound[{50, "id-pair"}]));
  EXPECT_LT((4.0 * bound[{50, "cd-pair"}]), (bound[{50, "d-rr"}]));
  const json& bytes = summary["lanes"][0]["bytes_per_step"];
  EXPECT_NEAR(bytes["vectors"].get<double>(), 8 * 12.5 * 4,
              16.0);  // 8 pairs; of 16 floats a rank keeps 3 or 4
  EXPECT_GT(bytes["sums"], 0.0);
  EXPECT_EQ(summary["lanes"][1]["bytes_per_step"]["vectors"], 0.0);
  EXPECT_EQ(summary["lanes"][2]["bytes_per_step"]["heads"], 0.0);
  const std::string page = read_all(in("page.html"));
  for (const char* part : {"cdgrab simulate", "50 workers", "Bytes per step", "<svg", "id-pair"})
    EXPECT_TRUE(has(page, part)) << part;
  EXPECT_FALSE(has(page, "<script"));
  const std::string chromium = test::find_chromium();
  if (chromium.empty()) return;
  const Outcome loaded = test::load_in_browser(chromium, in("page.html"), in("profile"));
  EXPECT_TRUE(has(loaded.out, "50 workers"));
}

TEST_F(Simulate, ATableHasALinePerOrderAndNumberOfWorkers) {
  const Outcome outcome = run({"simulate", "--examples", "300", "--workers", "1,7", "--rounds", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 7);
  EXPECT_TRUE(has(outcome.out, "l-infinity at first"));
  EXPECT_EQ(outcome.err, "");
}

TEST_F(Simulate, TheSameSeedGivesTheSameBytes) {
  const std::vector<std::string> words = {"simulate", "--examples", "400", "--workers",
                                          "3",        "--rounds",   "2",   "--json"};
  const auto without_time = [](const Outcome& outcome) {
    auto lines = json_lines(outcome.out);
    for (json& lane : lines.back()["lanes"]) lane.erase("seconds");
    return lines;
  };
  EXPECT_EQ(without_time(run(words)), without_time(run(words)));
}

TEST_F(Simulate, WrongValuesAreUsageErrors) {
  expect_failure(2, {"simulate", "--workers", "4,0"}, "[--workers] `4,0` is not a list");
  expect_failure(2, {"simulate", "--workers", "4;5"}, "[--workers]");
  expect_failure(2, {"simulate", "--workers", "70000"}, "1 to 65536");
  expect_failure(2, {"simulate", "--orders", "pair"}, "[--orders] `pair` is an order of one worker");
  expect_failure(2, {"simulate", "--orders", "cd-pari"}, "the nearest is `cd-pair`");
  expect_failure(2, {"simulate", "--orders", "cd-pair; unit=4"}, "name a --task");
  expect_failure(2, {"simulate", "--lr", "0.1"}, "[--lr] belongs to training; name a --task");
  expect_failure(2, {"simulate", "--split", "label"}, "[--split] belongs to training");
  expect_failure(2, {"simulate", "--rounds", "0"}, "must be a whole number from 1");
  expect_failure(2, {"simulate", "--dim", "-3"}, "must be a whole number");
  expect_failure(2, {"simulate", "--examples", "100000000000", "--dim", "100"}, "GB and this machine has");
  expect_failure(3, {"simulate", "--report", "nowhere/page.html"}, "[--report]");
}

}  // namespace
}  // namespace cdgrab
