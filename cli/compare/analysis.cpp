// SPDX-License-Identifier: Apache-2.0
#include "compare/analysis.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace cdgrab::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Of one recipe at one rate, a run per seed.
std::vector<const RunRecord*> runs_of(const CompareResult& result, const Recipe& recipe, double rate) {
  std::vector<const RunRecord*> runs;
  for (const RunRecord& run : result.runs) {
    if (run.rate == rate && run.recipe == recipe) runs.push_back(&run);
  }
  return runs;
}

double final_loss(const CompareResult& result, const RunRecord& run) {
  if (run.diverged || run.epochs.empty() || !std::isfinite(run.epochs.back().loss)) return kInfinity;
  return above_optimum(result, run.epochs.back().loss);
}

RateSummary summarise(const CompareResult& result, const Recipe& recipe, double rate) {
  std::vector<double> finals;
  std::vector<double> metrics;
  for (const RunRecord* run : runs_of(result, recipe, rate)) {
    finals.push_back(final_loss(result, *run));
    if (!run->epochs.empty()) metrics.push_back(run->epochs.back().metric);
  }
  RateSummary summary;
  summary.rate = rate;
  summary.final = spread_of(finals);
  summary.metric = spread_of(metrics).mean;
  summary.diverged = static_cast<std::size_t>(std::count(finals.begin(), finals.end(), kInfinity));
  return summary;
}

std::optional<std::size_t> best_rate(const std::vector<RateSummary>& rates) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (!std::isfinite(rates[i].final.mean)) continue;
    if (!best || rates[i].final.mean < rates[*best].final.mean) best = i;
  }
  return best;
}

Edge edge_of(std::size_t best, std::size_t rates) {
  if (rates == 1) return Edge::kOnlyRate;
  if (best == 0) return Edge::kLowest;
  return best + 1 == rates ? Edge::kHighest : Edge::kInside;
}

Entry make_entry(const CompareResult& result, const Recipe& recipe) {
  Entry entry;
  entry.recipe = recipe;
  for (const double rate : result.rates) entry.rates.push_back(summarise(result, recipe, rate));
  entry.best = best_rate(entry.rates);
  if (entry.best) entry.edge = edge_of(*entry.best, entry.rates.size());
  return entry;
}

Curve curve_of(const CompareResult& result, const Recipe& recipe, double rate,
               const double EpochPoint::*value, double less) {
  Curve curve;
  const std::vector<const RunRecord*> runs = runs_of(result, recipe, rate);
  for (std::size_t epoch = 0; epoch <= result.epochs; ++epoch) {
    std::vector<double> values;
    for (const RunRecord* run : runs) {
      if (epoch < run->epochs.size()) values.push_back(run->epochs[epoch].*value - less);
    }
    const Spread spread = values.size() == runs.size() ? spread_of(values) : Spread{};
    curve.mean.push_back(spread.mean);
    curve.low.push_back(spread.low);
    curve.high.push_back(spread.high);
  }
  return curve;
}

/// The lowest point of a curve; infinite if it has none.
double lowest_of(const Curve& curve) {
  double lowest = kInfinity;
  for (const double mean : curve.mean) lowest = std::fmin(lowest, mean);
  return lowest;
}

std::optional<std::size_t> first_epoch_at(const Curve& curve, double target) {
  for (std::size_t epoch = 0; epoch < curve.mean.size(); ++epoch) {
    if (curve.mean[epoch] <= target) return epoch;
  }
  return std::nullopt;
}

/// `block`: the entries of one schedule and average, the baseline first.
void mark_reached(const CompareResult& result, std::span<Entry> block) {
  const Entry& baseline = block.front();
  if (!baseline.best) return;
  const double target = lowest_of(loss_curve(result, baseline.recipe, baseline.at_best().rate));
  for (Entry& entry : block) {
    if (!entry.best) continue;
    entry.reached = first_epoch_at(loss_curve(result, entry.recipe, entry.at_best().rate), target);
  }
}

const Cost* cost_of(const CompareResult& result, const std::string& order) {
  const auto found = std::find_if(result.costs.begin(), result.costs.end(),
                                  [&](const Cost& cost) { return cost.order == order; });
  return found == result.costs.end() ? nullptr : &*found;
}

bool every_seed_below(const Spread& low, const Spread& high) {
  return std::min(low.count, high.count) >= 3 && low.high < high.low;
}

}  // namespace

Spread spread_of(std::span<const double> values) {
  Spread spread;
  spread.count = values.size();
  if (values.empty()) return spread;
  const auto count = static_cast<double>(values.size());
  spread.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  spread.low = *std::min_element(values.begin(), values.end());
  spread.high = *std::max_element(values.begin(), values.end());
  if (values.size() < 2) return spread;
  double squares = 0.0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / (count - 1.0));
  return spread;
}

double above_optimum(const CompareResult& result, double loss) { return loss - result.optimum.value_or(0.0); }

Curve loss_curve(const CompareResult& result, const Recipe& recipe, double rate) {
  return curve_of(result, recipe, rate, &EpochPoint::loss, result.optimum.value_or(0.0));
}

Curve bound_curve(const CompareResult& result, const Recipe& recipe, double rate) {
  return curve_of(result, recipe, rate, &EpochPoint::bound, 0.0);
}

std::vector<Entry> analyse(const CompareResult& result) {
  std::vector<Entry> entries;
  for (const std::string& schedule : result.schedules) {
    for (const std::string& average : result.averages) {
      for (const std::string& order : result.orders) {
        entries.push_back(make_entry(result, {order, schedule, average}));
      }
      mark_reached(result, std::span(entries).last(result.orders.size()));
    }
  }
  return entries;
}

Standing compare_finals(const Spread& first, const Spread& second) {
  const double deviation = std::hypot(first.deviation, second.deviation);
  if (std::isnan(deviation)) return Standing::kUnknown;
  const double difference = second.mean - first.mean;
  if (every_seed_below(first, second)) return Standing::kBelow;
  if (every_seed_below(second, first)) return Standing::kAbove;
  if (std::abs(difference) <= deviation) return Standing::kAlike;
  return difference > 0.0 ? Standing::kBelow : Standing::kAbove;
}

RelativeCost relative_cost(const CompareResult& result, const std::string& order) {
  const Cost* plain = cost_of(result, kBaselineOrder);
  const Cost* mine = cost_of(result, order);
  if (plain == nullptr || mine == nullptr) return {};
  return {mine->seconds() / plain->seconds(), mine->peak_bytes - plain->peak_bytes};
}

}  // namespace cdgrab::cli
