// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/sign_rule.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "cdgrab/random.hpp"

namespace cdgrab {
namespace {

TEST(SignRule, DeterministicIsTheOppositeOfTheProductAndTheTieIsExplicit) {
  SignRule plus({}, 0, 10);
  SignRule minus({.tie_plus = false}, 0, 10);
  EXPECT_EQ(plus.decide(-1.0, 1.0, {}), 1);
  EXPECT_EQ(plus.decide(1.0, 1.0, {}), -1);
  EXPECT_EQ(plus.decide(0.0, 1.0, {}), 1);
  EXPECT_EQ(minus.decide(0.0, 1.0, {}), -1);
}

TEST(SignRule, TheWalkIsPlusWithTheProbabilityOfThePaper) {
  SignRule walk({.kind = SignKind::kWalk, .c = 4.0}, 3, 10);
  for (const double product : {-5.0, -2.0, 0.0, 1.0, 5.0}) {
    int plus = 0;
    const int draws = 20'000;
    for (int t = 0; t < draws; ++t) plus += walk.decide(product, 1.0, {static_cast<std::uint64_t>(t), 0}) > 0;
    const double expected = std::clamp(0.5 - product / 8.0, 0.0, 1.0);
    EXPECT_NEAR(static_cast<double>(plus) / draws, expected, 0.012) << product;
  }
}

TEST(SignRule, TheSameDecisionIsDrawnTheSameWheneverItIsAsked) {
  SignRule one({.kind = SignKind::kWalk}, 7, 10);
  SignRule two({.kind = SignKind::kWalk}, 7, 10);
  one.begin_epoch(3);
  two.begin_epoch(3);
  std::vector<int> forward;
  std::vector<int> backward;
  for (std::uint64_t t = 0; t < 100; ++t) forward.push_back(one.decide(1.0, 1.0, {t, 2}));
  for (std::uint64_t t = 100; t-- > 0;) backward.push_back(two.decide(1.0, 1.0, {t, 2}));
  EXPECT_EQ(forward, std::vector<int>(backward.rbegin(), backward.rend()));
}

/// docs/math.md, section 1, written out once more.
TEST(SignRule, HalvingFollowsTheRecurrence) {
  const std::size_t n = 40;
  const std::uint64_t epoch = 4;
  SignRule halving({.kind = SignKind::kHalving}, 11, n);
  halving.begin_epoch(epoch);
  double tau = 0.0;
  for (std::uint64_t i = 1; i <= n / 2; ++i) {
    const double b2 = i % 5 == 0 ? 0.0 : uniform({1, Purpose::kData, 0, 0}, i) * 3.0;
    const double product = 4.0 * uniform({2, Purpose::kData, 0, 0}, i) - 2.0;
    double a = 0.0;
    if (b2 > 0.0) {
      const double big_l =
          std::log(4.0 / 0.5 * (1.0 + std::log(100.0)) * (1.0 + std::log(20.0)) * static_cast<double>(i)) +
          std::log(5.0);
      const double r = tau * big_l / b2;
      a = b2 * std::max(1.0, std::sqrt(r));
      tau = r <= 1.0 ? 2.0 * b2 : tau + 2.0 * b2 * std::max(0.0, big_l + 0.5 - std::sqrt(r)) / big_l;
    }
    const double u = 2.0 * uniform({11, Purpose::kSign, epoch, 0}, 2 * i) - 1.0;
    const int expected = a == 0.0 ? (product <= 0.0 ? 1 : -1) : (product <= a * u ? 1 : -1);
    ASSERT_EQ(halving.decide(product, b2, {2 * i, 0}), expected) << i;
  }
}

}  // namespace
}  // namespace cdgrab
