// SPDX-License-Identifier: Apache-2.0
// Every balancer x sign rule x cut into batches against the dull loop, on integer-valued rows, where
// all must agree bit for bit (docs/math.md, section 7).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cdgrab/cdgrab.hpp"
#include "oracle/dull.hpp"
#include "property/cases.hpp"
#include "property/runner.hpp"

namespace cdgrab {
namespace {

using cases::Dice;

oracle::Row row_of(const std::vector<float>& rows, std::size_t dim, Index unit) {
  const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(unit * dim);
  return {begin, begin + static_cast<std::ptrdiff_t>(dim)};
}

std::vector<Index> current_order(const Sampler& sampler) {
  return {sampler.order().begin(), sampler.order().end()};
}

struct Case {
  Dice dice;
  std::string text;
  Spec spec;
  std::size_t n;
  std::size_t dim;
  std::vector<float> rows;

  explicit Case(std::uint64_t seed)
      : dice(seed),
        text(cases::balancing_spec(dice)),
        spec(parse_spec(text)),
        n(cases::unit_count(dice, spec)),
        dim(1 + dice.roll(20)),
        rows(cases::integer_rows(dice, n, dim)) {}

  [[nodiscard]] std::string name(std::uint64_t seed) const {
    return "case " + std::to_string(seed) + ": " + text + ", n = " + std::to_string(n) +
           ", d = " + std::to_string(dim);
  }
};

TEST(Balance, EqualsTheDullLoopForAnyCutIntoBatches) {
  constexpr std::uint64_t kCases = cases::number_of(75'000);
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    Case c(seed);
    Sampler sampler(c.n, c.spec, {.seed = seed});
    oracle::Dull dull(c.spec, seed, c.n);
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      dull.begin_epoch(epoch);
      sampler.begin();
      const std::vector<Index> order = current_order(sampler);
      Index position = 0;
      while (position < c.n) {
        for (const Index unit : cases::step(sampler, c.rows, c.dim, 1 + c.dice.roll(17)))
          dull.see(position++, row_of(c.rows, c.dim, unit));
        dull.end_batch();
      }
      const std::vector<Index> expected = dull.next_order(order);
      dull.end_epoch();
      sampler.end_epoch();
      ASSERT_EQ(current_order(sampler), expected) << c.name(seed) << ", epoch " << epoch;
      ASSERT_TRUE(is_permutation(expected)) << c.name(seed);
    }
  }
}

/// Whatever is broken off, skipped, named out of order or not finite: the dull loop says what follows.
TEST(Balance, EqualsTheDullLoopWhateverIsMissing) {
  constexpr std::uint64_t kCases = cases::number_of(20'000);
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    Case c(1'000'000 + seed);
    if (cases::needs_power_of_two(c.spec)) continue;
    for (std::size_t i = 0; i < c.n; ++i)
      if (c.dice.roll(10) == 0)
        c.rows[i * c.dim + c.dice.roll(c.dim)] =
            c.dice.flip() ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    Sampler sampler(c.n, c.spec, {.seed = seed});
    oracle::Dull dull(c.spec, seed, c.n);
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      dull.begin_epoch(epoch);
      sampler.begin();
      const std::vector<Index> order = current_order(sampler);
      const std::vector<Index> inverse = inverse_order(order);
      const bool break_off = c.dice.roll(3) == 0;
      while (true) {
        const std::span<const Index> handed = sampler.next(1 + c.dice.roll(17));
        if (handed.empty() || (break_off && c.dice.roll(4) == 0)) break;
        std::vector<Index> named;
        for (const Index unit : handed)
          if (c.dice.roll(6) != 0) named.push_back(unit);
        if (c.dice.flip()) std::reverse(named.begin(), named.end());
        const auto batch = cases::gather(c.rows, c.dim, std::span<const Index>(named));
        sampler.observe(Rows<float>{batch.data(), named.size(), c.dim}, named);
        for (const Index unit : named) dull.see(inverse[unit], row_of(c.rows, c.dim, unit));
        if (!named.empty()) dull.end_batch();
      }
      const std::vector<Index> expected = dull.next_order(order);
      dull.end_epoch();
      ASSERT_EQ(sampler.next_order(), expected) << c.name(seed) << ", epoch " << epoch;
      sampler.end_epoch();
      ASSERT_EQ(current_order(sampler), expected) << c.name(seed) << ", epoch " << epoch;
      ASSERT_TRUE(is_permutation(sampler.order())) << c.name(seed);
    }
  }
}

/// Units that a batch of examples cuts anywhere; the vector of a short one is balanced, and its place is
/// fixed.
TEST(Balance, EqualsTheDullLoopInUnitsOfWhichTheLastIsShort) {
  constexpr std::uint64_t kCases = cases::number_of(10'000);
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    Case c(4'000'000 + seed);
    if (c.n == 0) continue;
    const std::size_t unit = 2 + c.dice.roll(4);
    const std::size_t examples = c.n * unit - 1 - c.dice.roll(unit - 1);
    const Spec spec = parse_spec(c.text + "; unit=" + std::to_string(unit));
    Sampler sampler(examples, spec, {.seed = seed});
    ASSERT_EQ(sampler.units(), c.n);
    oracle::Dull dull(spec, seed, c.n);
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      dull.begin_epoch(epoch);
      sampler.begin();
      const std::vector<Index> order = current_order(sampler);
      Index position = 0;
      while (!sampler.next(1 + c.dice.roll(17)).empty()) {
        const std::size_t count = sampler.outstanding();
        if (count == 0) continue;
        const auto batch = cases::gather(c.rows, c.dim, sampler.order().subspan(position, count));
        sampler.observe(Rows<float>{batch.data(), count, c.dim});
        for (std::size_t k = 0; k < count; ++k, ++position)
          dull.see(position, row_of(c.rows, c.dim, order[position]));
        dull.end_batch();
      }
      const std::vector<Index> expected = dull.next_order(order, true);
      dull.end_epoch();
      sampler.end_epoch();
      ASSERT_EQ(current_order(sampler), expected) << c.name(seed) << ", unit " << unit << ", epoch " << epoch;
      ASSERT_EQ(expected.back(), c.n - 1);
    }
  }
}

/// float64 rows, and larger sizes than the kernels' vectors and tiles.
TEST(Balance, EqualsTheDullLoopOnLongRows) {
  for (std::uint64_t seed = 0; seed < cases::number_of(300); ++seed) {
    Case c(2'000'000 + seed);
    c.dim = 1 + c.dice.roll(3000);
    c.n = cases::needs_power_of_two(c.spec) ? 128 : c.dice.roll(300);
    c.rows = cases::integer_rows(c.dice, c.n, c.dim);
    const std::vector<double> rows(c.rows.begin(), c.rows.end());
    Sampler single(c.n, c.spec, {.seed = seed});
    Sampler twice(c.n, c.spec, {.seed = seed});
    oracle::Dull dull(c.spec, seed, c.n);
    const std::size_t batch = 1 + c.dice.roll(64);
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      dull.begin_epoch(epoch);
      const std::vector<Index> order = current_order(single);
      for (Index position = 0; position < c.n;) {
        cases::step(twice, rows, c.dim, batch);
        for (const Index unit : cases::step(single, c.rows, c.dim, batch))
          dull.see(position++, row_of(c.rows, c.dim, unit));
        dull.end_batch();
      }
      const std::vector<Index> expected = dull.next_order(order);
      dull.end_epoch();
      single.end_epoch();
      twice.end_epoch();
      ASSERT_EQ(current_order(single), expected) << c.name(seed) << ", epoch " << epoch;
      ASSERT_EQ(current_order(twice), expected) << c.name(seed) << ", epoch " << epoch;
    }
  }
}

/// Real-valued rows in float64: the same signs as long as no product came nearer to a tie than rounding.
TEST(Balance, AgreesWithTheDullLoopOnRealNumbersAwayFromTies) {
  std::size_t compared = 0;
  for (std::uint64_t seed = 0; seed < cases::number_of(2'000); ++seed) {
    Case c(3'000'000 + seed);
    std::string text = c.text;
    if (c.spec.centring != Centring::kPair && text.find("centring") == std::string::npos && c.dice.flip())
      text += "; centring=ema,beta=0.75";
    if (c.dice.flip()) text += "; normalize";
    c.dim += 1;  // in one dimension all unit vectors are equal but for rounding, which is a tie
    const Spec spec = parse_spec(text);
    std::vector<double> rows(c.n * c.dim);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = normal({seed, Purpose::kData, 1, 0}, i);
    Sampler sampler(c.n, spec, {.seed = seed});
    oracle::Dull dull(spec, seed, c.n);
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
      dull.begin_epoch(epoch);
      const std::vector<Index> order = current_order(sampler);
      for (Index position = 0; position < c.n;) {
        for (const Index unit : cases::step(sampler, rows, c.dim, 1 + c.dice.roll(17))) {
          const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(unit * c.dim);
          dull.see(position++, {begin, begin + static_cast<std::ptrdiff_t>(c.dim)});
        }
        dull.end_batch();
      }
      const std::vector<Index> expected = dull.next_order(order);
      dull.end_epoch();
      sampler.end_epoch();
      if (dull.smallest_margin() < 1e-9) break;
      ++compared;
      ASSERT_EQ(current_order(sampler), expected)
          << text << ", n = " << c.n << ", d = " << c.dim << ", margin " << dull.smallest_margin();
    }
  }
  EXPECT_GT(compared, cases::number_of(2'500));
}

}  // namespace
}  // namespace cdgrab
