// SPDX-License-Identifier: Apache-2.0
// Ten rounds on 100,000 vectors N(0, 1/d) bring the herding bound far below that of random orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cdgrab/cdgrab.hpp"
#include "property/runner.hpp"

namespace cdgrab {
namespace {

constexpr std::size_t kExamples = 100'000;

std::vector<float> gaussian_rows(std::size_t dim) {
  std::vector<float> rows(kExamples * dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<float>(scale * normal({1, Purpose::kData, 0, 0}, i));
  return rows;
}

HerdingBound median_of_random(const std::vector<float>& rows, std::size_t dim) {
  std::vector<double> l2;
  std::vector<double> linf;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const auto order = random_permutation({seed, Purpose::kOrder, 0, 0}, kExamples);
    const HerdingBound bound = herding_bound<float>(rows, dim, order);
    l2.push_back(bound.l2);
    linf.push_back(bound.linf);
  }
  std::sort(l2.begin(), l2.end());
  std::sort(linf.begin(), linf.end());
  return {l2[2], linf[2]};
}

HerdingBound after_ten_rounds(const std::string& spec, const std::vector<float>& rows, std::size_t dim) {
  Sampler sampler(kExamples, parse_spec(spec));
  for (int round = 0; round < 10; ++round) {
    sampler.begin();
    while (!cases::step(sampler, rows, dim, 256).empty()) {
    }
  }
  return herding_bound<float>(rows, dim, sampler.next_order());
}

struct Goal {
  std::size_t dim;
  double pair;
  double mean;
};

class Herding : public testing::TestWithParam<Goal> {};

TEST_P(Herding, TenRoundsBringTheBoundFarBelowRandom) {
  const auto [dim, pair_goal, mean_goal] = GetParam();
  const std::vector<float> rows = gaussian_rows(dim);
  const HerdingBound random = median_of_random(rows, dim);
  const auto check = [&](const std::string& spec, double goal) {
    const HerdingBound bound = after_ten_rounds(spec, rows, dim);
    std::printf("d = %zu, %s: l-infinity %.2f against %.1f (%.1fx), l2 %.2f against %.1f (%.1fx)\n", dim,
                spec.c_str(), bound.linf, random.linf, random.linf / bound.linf, bound.l2, random.l2,
                random.l2 / bound.l2);
    EXPECT_GE(random.linf / bound.linf, goal) << spec;
  };
  check("pair", pair_goal);
  check("mean", mean_goal);
}

INSTANTIATE_TEST_SUITE_P(Dims, Herding, testing::Values(Goal{16, 38.0, 52.0}, Goal{128, 16.0, 22.0}));

}  // namespace
}  // namespace cdgrab
