// SPDX-License-Identifier: Apache-2.0
// From runs to figures: pure functions of a result.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compare/result.hpp"

namespace cdgrab::cli {

/// Of the seeds' values.
struct Spread {
  double mean = kNotThere;
  double deviation = kNotThere;  ///< sample standard deviation; NaN for fewer than two values
  double low = kNotThere;
  double high = kNotThere;
  std::size_t count = 0;
};
Spread spread_of(std::span<const double> values);

struct RateSummary {
  double rate = 0.0;
  Spread final;               ///< loss after the last epoch, above the optimum where there is one
  double metric = kNotThere;  ///< mean after the last epoch
  std::size_t diverged = 0;   ///< seeds; if there is one, the mean is infinite
};

/// Where the best rate lies among those tried.
enum class Edge { kInside, kLowest, kHighest, kOnlyRate };

/// One recipe at every rate.
struct Entry {
  Recipe recipe;
  std::vector<RateSummary> rates;   ///< as many as the result's
  std::optional<std::size_t> best;  ///< of `rates`: the lowest mean; none if every rate diverged
  Edge edge = Edge::kInside;
  /// The first epoch in which this, at its best rate, was as low as random reshuffling ever was with the
  /// same schedule and average at its own best rate; means over seeds.
  std::optional<std::size_t> reached;

  [[nodiscard]] const RateSummary& at_best() const { return rates[*best]; }
};

/// Mean and range over seeds, epoch by epoch; a gap where no run has a value.
struct Curve {
  std::vector<double> mean;
  std::vector<double> low;
  std::vector<double> high;
};

/// Less the optimum, where there is one.
double above_optimum(const CompareResult& result, double loss);

Curve loss_curve(const CompareResult& result, const Recipe& recipe, double rate);
Curve bound_curve(const CompareResult& result, const Recipe& recipe, double rate);

/// Every order x schedule x average: by schedule, then average, then order, in the result's sequence.
std::vector<Entry> analyse(const CompareResult& result);

enum class Standing {
  kBelow,    ///< the first is lower, by more than the seeds' deviation or for every seed
  kAlike,    ///< the difference is within the seeds' deviation
  kAbove,    ///< the second is lower, likewise
  kUnknown,  ///< one seed: no deviation to compare with
};

/// Compares the difference of means with the standard deviation of a difference, the root of the sum of both
/// variances. One wild seed makes that deviation larger than any difference: three seeds or more that all end
/// below all of the other's are below, too.
Standing compare_finals(const Spread& first, const Spread& second);

/// The lowest of the entries that `admits` lets in, at its best rate; null if there is none.
template <class Admits>
const Entry* lowest_entry(const std::vector<Entry>& entries, const Admits& admits) {
  const Entry* lowest = nullptr;
  for (const Entry& entry : entries) {
    if (!entry.best || !admits(entry)) continue;
    if (lowest == nullptr || entry.at_best().final.mean < lowest->at_best().final.mean) lowest = &entry;
  }
  return lowest;
}

/// Seconds of one epoch in multiples of plain training's, and bytes beside it; NaN if not measured.
struct RelativeCost {
  double time = kNotThere;
  double bytes = kNotThere;
};
RelativeCost relative_cost(const CompareResult& result, const std::string& order);

}  // namespace cdgrab::cli
