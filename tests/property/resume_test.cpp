// SPDX-License-Identifier: Apache-2.0
// Resume equals never stopping, for every order, at any step, through the bytes of a file.
#include <gtest/gtest.h>

#include "cdgrab/cdgrab.hpp"
#include "property/cases.hpp"
#include "property/runner.hpp"

namespace cdgrab {
namespace {

using cases::Dice;

std::string any_spec(Dice& dice) {
  static const std::vector<std::string> kInexact = {
      "mean; centring=ema",   "pair; normalize",       "recursive; depth=2; normalize",
      "pair; sketch=gauss:3", "mean; sketch=sparse:4", "batch; sketch=kron:2"};
  std::string text;
  switch (dice.roll(4)) {
    case 0:
      text = dice.pick(cases::kBaselines);
      break;
    case 1:
      text = dice.pick(kInexact);
      break;
    default:
      text = cases::balancing_spec(dice);
      break;
  }
  if (parse_spec(text).balances() && dice.roll(4) == 0) text += "; every=" + std::to_string(1 + dice.roll(3));
  if (dice.roll(4) == 0) text += "; unit=" + std::to_string(1 + dice.roll(4));
  return text;
}

/// One training step: what was handed out, and then its vectors unless the step is lost.
std::vector<Index> train_step(Sampler& sampler, const std::vector<float>& rows, std::size_t dim,
                              std::size_t count, bool lost) {
  const std::size_t before = sampler.outstanding();
  const auto handed = sampler.next(count);
  std::vector<Index> examples(handed.begin(), handed.end());
  if (lost) return examples;
  std::vector<float> batch((sampler.outstanding() - before) * dim);
  for (std::size_t i = 0; i < batch.size(); ++i) batch[i] = rows[(sampler.epoch() + i * 7) % rows.size()];
  sampler.observe(Rows<float>{batch.data(), batch.size() / dim, dim});
  return examples;
}

TEST(Resume, EqualsNeverStoppingAtAnyStep) {
  constexpr std::uint64_t kCases = cases::number_of(15'000);
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    Dice dice(10'000'000 + seed);
    const std::string text = any_spec(dice);
    const Spec spec = parse_spec(text);
    const std::size_t n = 1 + dice.roll(40);
    const std::size_t dim = 6;
    const std::vector<float> rows = cases::integer_rows(dice, 50, dim);
    const SamplerOptions options{.seed = seed, .shapes = {{2, 3}}};
    Sampler whole(n, spec, options);
    Sampler resumed(n, spec, options);
    if (spec.name == OrderName::kScore) {
      std::vector<double> scores(whole.units());
      for (double& score : scores) score = static_cast<double>(dice.roll(5));
      whole.set_scores(scores);
      resumed.set_scores(scores);
    }
    for (std::size_t step = 0; step < 30; ++step) {
      const std::size_t count = 1 + dice.roll(13);
      const bool lost = dice.roll(8) == 0;
      if (dice.roll(5) == 0) {
        const State saved = resumed.state();
        Sampler other(n, spec, {.seed = seed + 1, .shapes = {{2, 3}}});
        other.load(decode_state(encode_state(saved), "test"));
        ASSERT_EQ(other.state(), saved) << text << ", n = " << n;
        resumed = std::move(other);
        // A loader that starts to iterate, twice, goes on where the state stood.
        resumed.begin();
        resumed.begin();
        if (whole.position().handed_out == n) whole.begin();
      }
      ASSERT_EQ(train_step(resumed, rows, dim, count, lost), train_step(whole, rows, dim, count, lost))
          << "case " << seed << ": " << text << ", n = " << n << ", step " << step;
      if (whole.position().handed_out == n && dice.flip()) {
        whole.begin();
        resumed.begin();
      }
      if (step % 8 != 7) continue;
      ASSERT_EQ(resumed.state(), whole.state()) << "case " << seed << ": " << text << ", n = " << n;
    }
  }
}

}  // namespace
}  // namespace cdgrab
