// SPDX-License-Identifier: Apache-2.0
// What every order must do, whatever it looks at.
#include "cdgrab/order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "cdgrab/cdgrab.hpp"
#include "property/cases.hpp"
#include "property/runner.hpp"

namespace cdgrab {
namespace {

std::vector<Index> order_of(const Sampler& sampler) {
  return {sampler.order().begin(), sampler.order().end()};
}

std::vector<Index> reversed(std::vector<Index> order) {
  std::reverse(order.begin(), order.end());
  return order;
}

/// Orders of the first epochs, everything observed.
std::vector<std::vector<Index>> run(const std::string& spec, std::size_t n, std::size_t epochs,
                                    SamplerOptions options = {}) {
  cases::Dice dice(n);
  const auto rows = cases::integer_rows(dice, n, 4);
  Sampler sampler(n, parse_spec(spec), std::move(options));
  std::vector<std::vector<Index>> orders;
  for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.begin();
    orders.push_back(order_of(sampler));
    while (!cases::step(sampler, rows, 4, 5).empty()) {
    }
  }
  return orders;
}

const std::vector<std::string> kPermuting = {"mean",
                                             "pair",
                                             "batch",
                                             "recursive",
                                             "recursive-pair",
                                             "recursive-pair; depth=0",
                                             "mean; centring=ema",
                                             "pair; every=2",
                                             "mean; every=3",
                                             "rr",
                                             "so",
                                             "fixed",
                                             "flipflop",
                                             "block-reversal",
                                             "block-reversal; block=3; reverse=no",
                                             "greedy",
                                             "score"};

class OrderConformance : public testing::TestWithParam<std::string> {};

TEST_P(OrderConformance, EveryOrderIsAPermutationForAnyNumberOfExamples) {
  for (std::size_t n = 0; n <= 33; ++n)
    for (const auto& order : run(GetParam(), n, 5)) {
      ASSERT_EQ(order.size(), n);
      ASSERT_TRUE(is_permutation(order)) << n;
    }
}

TEST_P(OrderConformance, SameSeedSameOrders) {
  EXPECT_EQ(run(GetParam(), 31, 4, {.seed = 5}), run(GetParam(), 31, 4, {.seed = 5}));
}

TEST_P(OrderConformance, AnInitialOrderGivenIsTheFirstEpochs) {
  const auto initial = random_permutation({99, Purpose::kData, 0, 0}, 17);
  EXPECT_EQ(run(GetParam(), 17, 2, {.initial_order = initial})[0], initial);
  EXPECT_THROW(run(GetParam(), 17, 1, {.initial_order = {0, 1, 1}}), UserError);
}

TEST_P(OrderConformance, UnitsKeepTheirExamplesTogether) {
  Sampler sampler(23, parse_spec(GetParam() + "; unit=4"));
  ASSERT_EQ(sampler.units(), 6U);
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.begin();
    std::vector<Index> examples;
    for (auto handed = sampler.next(5); !handed.empty(); handed = sampler.next(5))
      examples.insert(examples.end(), handed.begin(), handed.end());
    ASSERT_TRUE(is_permutation(examples));
    for (std::size_t i = 1; i < examples.size(); ++i) {
      if (examples[i] % 4 == 0) continue;
      EXPECT_EQ(examples[i], examples[i - 1] + 1);
    }
    const std::vector<float> rows(sampler.units() * 3, 1.0F);
    sampler.observe(Rows<float>{rows.data(), sampler.units(), 3});
  }
}

TEST_P(OrderConformance, AShortUnitKeepsTheLastPlaceSoThatABatchOfOneUnitIsAUnit) {
  Sampler sampler(23, parse_spec(GetParam() + "; unit=4"));
  for (int epoch = 0; epoch < 4; ++epoch) {
    sampler.begin();
    EXPECT_EQ(sampler.order().back(), 5U);
    for (std::size_t batch = 0; batch < 6; ++batch) {
      const auto handed = sampler.next(4);
      ASSERT_EQ(handed.size(), batch < 5 ? 4U : 3U);
      EXPECT_EQ(handed.front(), sampler.order()[batch] * 4);
      const std::vector<float> row = {static_cast<float>(batch), 1.0F, static_cast<float>(handed[0])};
      sampler.observe(Rows<float>{row.data(), 1, 3});
    }
    EXPECT_TRUE(sampler.next(4).empty());
  }
  EXPECT_THROW(Sampler(23, parse_spec(GetParam() + "; unit=4"), {.initial_order = {0, 1, 2, 5, 4, 3}}),
               UserError);
}

INSTANTIATE_TEST_SUITE_P(All, OrderConformance, testing::ValuesIn(kPermuting), [](const auto& instance) {
  std::string name = instance.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

TEST(Orders, RandomReshufflingChangesEveryEpochAndShuffleOnceNever) {
  const auto rr = run("rr", 50, 3);
  EXPECT_NE(rr[0], rr[1]);
  EXPECT_NE(rr[1], rr[2]);
  const auto so = run("so", 50, 3);
  EXPECT_EQ(so[0], so[1]);
  EXPECT_EQ(so[1], so[2]);
  EXPECT_EQ(run("fixed", 50, 2)[1], identity_order(50));
}

TEST(Orders, EveryThirdEpochMakesAnOrderThatTheTwoAfterItKeep) {
  const std::vector<std::string> specs = {"pair", "mean", "batch", "recursive; depth=2", "recursive-pair"};
  for (const std::string& spec : specs) {
    const auto kept = run(spec + "; every=3", 21, 6);
    EXPECT_EQ(kept[0], run(spec, 21, 1)[0]) << spec;
    EXPECT_EQ(kept[1], run(spec, 21, 2)[1]) << spec;
    EXPECT_NE(kept[1], kept[0]) << spec;
    EXPECT_EQ(kept[2], kept[1]) << spec;
    EXPECT_EQ(kept[3], kept[1]) << spec;
    EXPECT_NE(kept[4], kept[3]) << spec;
    EXPECT_EQ(kept[5], kept[4]) << spec;
  }
  // Nothing of an epoch that was not looked at is left: pairs begin anew.
  EXPECT_EQ(run("pair; every=3", 21, 5)[4],
            run("pair", 21, 2, {.initial_order = run("pair; every=3", 21, 4)[3]})[1]);
}

TEST(Orders, AnEpochThatIsNotLookedAtTakesAnyVectorsAndKeepsWhatWasLeftOutInItsPlace) {
  Sampler sampler(9, parse_spec("pair; every=2"));
  const std::vector<float> rows(9 * 2, 1.0F);
  sampler.next(9);
  EXPECT_TRUE(sampler.needs_vectors());
  sampler.observe(Rows<float>{rows.data(), 9, 2});
  sampler.end_epoch();
  EXPECT_FALSE(sampler.needs_vectors());
  const auto before = order_of(sampler);
  sampler.next(5);
  const std::vector<float> bad(3 * 2, NAN);
  sampler.observe(Rows<float>{bad.data(), 3, 2});
  EXPECT_EQ(sampler.report().observed, 3U);
  EXPECT_THROW(sampler.observe(Rows<float>{rows.data(), 2, 3}), UserError);
  EXPECT_EQ(sampler.next_order(), before);
  sampler.end_epoch();
  EXPECT_EQ(order_of(sampler), before);
  EXPECT_TRUE(sampler.needs_vectors());
}

TEST(Orders, FlipFlopReversesEverySecondEpoch) {
  const auto orders = run("flipflop", 20, 5);
  EXPECT_EQ(orders[1], reversed(orders[0]));
  EXPECT_EQ(orders[3], reversed(orders[2]));
  EXPECT_NE(orders[2], orders[0]);
}

TEST(Orders, BlockReversalMovesWholeBlocksAndItsPartsAreSeparate) {
  const auto orders = run("block-reversal; block=4", 18, 4);
  EXPECT_EQ(orders[1], reversed(orders[0]));
  EXPECT_EQ(orders[3], reversed(orders[2]));
  EXPECT_NE(orders[2], orders[0]);
  for (std::size_t b = 0; b < 18; b += 4) {
    const auto begin = orders[0].begin() + static_cast<std::ptrdiff_t>(b);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min<std::size_t>(4, 18 - b));
    EXPECT_NE(std::search(orders[2].begin(), orders[2].end(), begin, end), orders[2].end());
  }
  const auto kept = run("block-reversal; block=4; reshuffle=no", 18, 4);
  EXPECT_EQ(kept[2], kept[0]);
  EXPECT_EQ(kept[1], reversed(kept[0]));
  const auto forward = run("block-reversal; block=4; reverse=no", 18, 3);
  EXPECT_NE(forward[1], reversed(forward[0]));
}

TEST(Orders, WithReplacementStaysInRangeAndRepeats) {
  const auto orders = run("swr", 100, 2);
  EXPECT_FALSE(is_permutation(orders[0]));
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_LT(*std::max_element(orders[0].begin(), orders[0].end()), 100U);
}

TEST(Orders, WithReplacementAShortUnitIsDrawnOnceAndLast) {
  Sampler sampler(47, parse_spec("swr; unit=2"));
  for (int epoch = 0; epoch < 5; ++epoch) {
    sampler.begin();
    EXPECT_EQ(std::count(sampler.order().begin(), sampler.order().end(), 23), 1);
    EXPECT_EQ(sampler.order().back(), 23U);
    EXPECT_EQ(sampler.next(100).size(), 47U);
  }
}

TEST(Orders, ScoresAscendAndTiesKeepTheirOrder) {
  Sampler sampler(5, parse_spec("score"), {.initial_order = {4, 3, 2, 1, 0}});
  sampler.set_scores(std::vector<double>{2.0, 1.0, 2.0, 0.0, 1.0});
  sampler.end_epoch();
  EXPECT_EQ(order_of(sampler), (std::vector<Index>{3, 4, 1, 2, 0}));
  EXPECT_THROW(sampler.set_scores(std::vector<double>{1.0}), UserError);
  EXPECT_THROW(sampler.set_scores(std::vector<double>(5, std::nan(""))), UserError);
  EXPECT_THROW(Sampler(5, parse_spec("pair")).set_scores(std::vector<double>(5)), UserError);
}

/// Greedy by definition: at every step the vector that keeps the centred prefix smallest.
TEST(Orders, GreedyChoosesTheSmallestPrefixAtEveryStep) {
  const std::size_t n = 30;
  std::vector<double> rows(n * 3);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = normal({3, Purpose::kData, 0, 0}, i);
  Sampler sampler(n, parse_spec("greedy"));
  while (!cases::step(sampler, rows, 3, 7).empty()) {
  }
  const std::vector<Index> order = sampler.next_order();
  std::vector<double> mean(3);
  for (std::size_t i = 0; i < rows.size(); ++i) mean[i % 3] += rows[i] / static_cast<double>(n);
  const auto norm2 = [&](const std::vector<double>& prefix, Index unit) {
    double total = 0.0;
    for (std::size_t i = 0; i < 3; ++i) {
      const double value = prefix[i] + rows[unit * 3 + i] - mean[i];
      total += value * value;
    }
    return total;
  };
  std::vector<double> prefix(3);
  for (std::size_t t = 0; t < n; ++t) {
    for (std::size_t later = t + 1; later < n; ++later)
      ASSERT_LE(norm2(prefix, order[t]), norm2(prefix, order[later]) + 1e-9);
    for (std::size_t i = 0; i < 3; ++i) prefix[i] += rows[order[t] * 3 + i] - mean[i];
  }
}

TEST(Orders, ASavedOrderIsUsedEveryEpochAndABadOneRefused) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "cdgrab_saved_order.npy";
  write_npy_order(path, std::vector<Index>{2, 0, 1});
  const auto orders = run("file; path=" + path.string(), 3, 3);
  for (const auto& order : orders) EXPECT_EQ(order, (std::vector<Index>{2, 0, 1}));
  EXPECT_THROW(run("file; path=" + path.string(), 4, 1), FileError);
  EXPECT_THROW(run("file; path=/nonexistent/order.npy", 4, 1), FileError);
  EXPECT_NO_THROW(Sampler(6, parse_spec("file; unit=2; path=" + path.string())));
  EXPECT_THROW(Sampler(5, parse_spec("file; unit=2; path=" + path.string())), FileError)
      << "a short unit first";
  write_npy_order(path, std::vector<Index>{1, 0, 2});
  Sampler short_last(5, parse_spec("file; unit=2; path=" + path.string()));
  short_last.end_epoch();
  EXPECT_EQ(order_of(short_last), (std::vector<Index>{1, 0, 2}));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace cdgrab
