// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/random.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "philox.hpp"

namespace cdgrab {
namespace {

// The vectors published with Random123 (kat_vectors, "philox4x32 10").
TEST(Random, PhiloxGivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, BitsArePhiloxOfThePositionEpochPurposeAndLevel) {
  const Stream stream{0x1122334455667788, Purpose::kSign, 0xABCDEF0123456789, 0x10007};
  const PhiloxCounter block =
      philox4x32_10({0x9abcdef0, 0x12345678, 0x23456789, 0x00040007}, {0x55667788, 0x11223344});
  EXPECT_EQ(random_bits(stream, 0x123456789abcdef0), (std::uint64_t{block[1]} << 32) | block[0]);
}

TEST(Random, EveryArgumentChangesTheDraw) {
  const Stream base{1, Purpose::kOrder, 1, 1};
  std::set<std::uint64_t> draws{random_bits(base, 1), random_bits(base, 2)};
  draws.insert(random_bits({2, Purpose::kOrder, 1, 1}, 1));
  draws.insert(random_bits({1, Purpose::kSign, 1, 1}, 1));
  draws.insert(random_bits({1, Purpose::kOrder, 2, 1}, 1));
  draws.insert(random_bits({1, Purpose::kOrder, 1, 2}, 1));
  EXPECT_EQ(draws.size(), 6U);
}

TEST(Random, UniformLiesInTheUnitIntervalAndHasItsMoments) {
  const Stream stream{7, Purpose::kData, 0, 0};
  constexpr int kDraws = 20000;
  double sum = 0.0;
  double squares = 0.0;
  for (int t = 0; t < kDraws; ++t) {
    const double u = uniform(stream, static_cast<std::uint64_t>(t));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.01);
  EXPECT_NEAR(squares / kDraws, 1.0 / 3.0, 0.01);
}

TEST(Random, NormalIsFiniteAndHasItsMoments) {
  const Stream stream{7, Purpose::kData, 1, 0};
  constexpr int kDraws = 20000;
  std::array<double, 4> moments{};
  for (int t = 0; t < kDraws; ++t) {
    const double z = normal(stream, static_cast<std::uint64_t>(t));
    ASSERT_TRUE(std::isfinite(z));
    double power = 1.0;
    for (double& moment : moments) moment += (power *= z) / kDraws;
  }
  EXPECT_NEAR(moments[0], 0.0, 0.03);
  EXPECT_NEAR(moments[1], 1.0, 0.05);
  EXPECT_NEAR(moments[2], 0.0, 0.1);
  EXPECT_NEAR(moments[3], 3.0, 0.3);
}

TEST(Random, UniformBelowStaysBelowAndHitsEveryValueEvenly) {
  const Stream stream{3, Purpose::kReplacement, 0, 0};
  std::array<int, 7> hits{};
  for (std::uint64_t t = 0; t < 70000; ++t) ++hits.at(uniform_below(stream, t, 7));
  for (const int count : hits) EXPECT_NEAR(count, 10000, 500);
  EXPECT_EQ(uniform_below(stream, 0, 1), 0U);
  EXPECT_LT(uniform_below(stream, 0, std::uint64_t{1} << 63), std::uint64_t{1} << 63);
}

TEST(Random, PermutationIsFisherYatesWithOneDrawPerPosition) {
  const Stream stream{11, Purpose::kOrder, 5, 0};
  for (std::size_t n = 0; n < 300; ++n) {
    std::vector<Index> expected = identity_order(n);
    for (std::size_t t = n; t-- > 1;) std::swap(expected[t], expected[uniform_below(stream, t, t + 1)]);
    ASSERT_EQ(random_permutation(stream, n), expected) << n;
    ASSERT_TRUE(is_permutation(expected));
  }
}

TEST(Random, AllPermutationsOfFourAreEquallyLikely) {
  std::array<int, 256> hits{};
  for (std::uint64_t seed = 0; seed < 24000; ++seed) {
    const std::vector<Index> order = random_permutation({seed, Purpose::kOrder, 0, 0}, 4);
    ++hits[order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3]];
  }
  int kinds = 0;
  for (const int count : hits) {
    if (count == 0) continue;
    ++kinds;
    EXPECT_NEAR(count, 1000, 170);
  }
  EXPECT_EQ(kinds, 24);
}

}  // namespace
}  // namespace cdgrab
