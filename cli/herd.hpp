// SPDX-License-Identifier: Apache-2.0
// What `cdgrab herd` was asked and what came out: shared by its ways of showing it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cdgrab/herding.hpp"
#include "cdgrab/spec.hpp"

namespace cdgrab::cli {

struct HerdOptions {
  std::string file;  ///< empty: vectors are generated
  std::string order = "mean,pair";
  std::size_t rounds = 10;
  std::uint64_t seed = 0;
  std::size_t examples = 10000;
  std::size_t dim = 16;
  std::string shapes;
  std::size_t batch = 64;
  std::string out;
  std::string state;
  std::string report;
  bool json = false;
  bool quiet = false;
  std::string command_line;
};

/// One order's way through the rounds.
struct Lane {
  Spec spec;
  std::string label;
  std::vector<HerdingBound>
      bounds;  ///< [r]: of the order used in round r; the last: of the order made after all
};

struct HerdResult {
  std::size_t examples = 0;
  std::size_t dim = 0;
  std::size_t not_finite = 0;  ///< rows passed over
  std::string dtype;
  HerdingBound random;      ///< median of kRandomOrders random orders, each norm by itself
  std::vector<Lane> lanes;  ///< random reshuffling first
};

inline constexpr std::size_t kRandomOrders = 5;

/// How many times below random an order ends; NaN when neither has any error.
struct Gain {
  double l2 = 0.0;
  double linf = 0.0;
};
Gain gain_of(const HerdResult& result, const Lane& lane);

/// One plain sentence on how an order ended.
std::string verdict(const HerdResult& result, const Lane& lane);

}  // namespace cdgrab::cli
