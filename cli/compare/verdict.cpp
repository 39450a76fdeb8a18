// SPDX-License-Identifier: Apache-2.0
#include "compare/verdict.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "format.hpp"

namespace cdgrab::cli {
namespace {

bool is_baseline(const Entry& entry) { return entry.recipe.order == kBaselineOrder; }

/// A constant rate, and the weights as they are.
bool is_plain(const Entry& entry) {
  return entry.recipe.schedule == "constant" && entry.recipe.average == "none";
}

/// The best of the baseline against the best of the others, each at its own best rate.
struct Match {
  const Entry* baseline = nullptr;
  const Entry* other = nullptr;

  [[nodiscard]] bool complete() const { return baseline != nullptr && other != nullptr; }
  [[nodiscard]] const Spread& baseline_final() const { return baseline->at_best().final; }
  [[nodiscard]] const Spread& other_final() const { return other->at_best().final; }
  [[nodiscard]] Standing standing() const { return compare_finals(other_final(), baseline_final()); }
};

template <class Admits>
Match match_among(const std::vector<Entry>& entries, const Admits& admits) {
  return {lowest_entry(entries, [&](const Entry& e) { return is_baseline(e) && admits(e); }),
          lowest_entry(entries, [&](const Entry& e) { return !is_baseline(e) && admits(e); })};
}

std::string final_text(const Entry& entry) { return format_deviation(entry.at_best().final.mean, kNotThere); }

/// How much lower `low` is than `high`: a factor where losses count from the optimum, else a difference.
std::string distance(const CompareResult& result, const Spread& low, const Spread& high) {
  if (result.optimum && low.mean > 0.0) {
    return fmt::format("{} times nearer the optimum", format_gain(high.mean / low.mean));
  }
  return fmt::format("{} lower", format_short(high.mean - low.mean));
}

/// "`pair` ends 12 times nearer the optimum than `rr` (6.93e-05 against 8.50e-04)".
std::string outcome(const CompareResult& result, const Match& match) {
  const bool other_lower = match.other_final().mean <= match.baseline_final().mean;
  const Entry& low = other_lower ? *match.other : *match.baseline;
  const Entry& high = other_lower ? *match.baseline : *match.other;
  return fmt::format("`{}` ends {} than `{}` ({} against {})", name_of(low.recipe),
                     distance(result, low.at_best().final, high.at_best().final), name_of(high.recipe),
                     final_text(low), final_text(high));
}

std::string alike(const Match& match) {
  return fmt::format("`{}` is as good as `{}` within the seeds' deviation ({} against {})",
                     name_of(match.baseline->recipe), name_of(match.other->recipe),
                     final_text(*match.baseline), final_text(*match.other));
}

/// What makes the difference of the two one.
std::string_view beyond(const Match& match) {
  const Spread& a = match.baseline_final();
  const Spread& b = match.other_final();
  return std::abs(a.mean - b.mean) > std::hypot(a.deviation, b.deviation) ? "beyond the seeds' deviation"
                                                                          : "for every seed";
}

/// Ordering helps at a constant rate, but not against the best of the baseline.
bool helps_only_plain(const Match& best, const Match& plain) {
  return plain.complete() && plain.standing() == Standing::kBelow && best.standing() != Standing::kBelow;
}

/// What a constant rate says, when that is not what was just said.
std::string plain_clause(const CompareResult& result, const Match& best, const Match& plain) {
  if (!plain.complete() || (plain.baseline == best.baseline && plain.other == best.other)) return "";
  switch (plain.standing()) {
    case Standing::kBelow:
      return fmt::format("; {} at a constant rate {}", helps_only_plain(best, plain) ? "only" : "and",
                         outcome(result, plain));
    case Standing::kAbove:
      return fmt::format("; at a constant rate {}", outcome(result, plain));
    case Standing::kAlike:
      return fmt::format("; at a constant rate {}", alike(plain));
    case Standing::kUnknown:
      break;
  }
  return "";
}

Verdict judge_match(const CompareResult& result, const Match& best, const Match& plain) {
  const std::string clause = plain_clause(result, best, plain);
  const std::string& order = best.other->recipe.order;
  const std::string only =
      helps_only_plain(best, plain) ? "Only at a constant rate does ordering help here" : "";
  switch (best.standing()) {
    case Standing::kBelow:
      return {fmt::format("Yes, epoch for epoch: \u201c{}\u201d ends lower", order),
              fmt::format("Yes: {}, {}{}.", outcome(result, best), beyond(best), clause),
              {}};
    case Standing::kAlike:
      return {only.empty() ? "No: ordering does not help here" : only,
              fmt::format("No: {}{}.", alike(best), clause),
              {}};
    case Standing::kAbove:
      return {only.empty() ? "No: random reshuffling ends lowest here" : only,
              fmt::format("No: {}, {}{}.", outcome(result, best), beyond(best), clause),
              {}};
    case Standing::kUnknown:
      break;
  }
  return {"Undecided: one seed says nothing about chance",
          fmt::format("Undecided: {}, but one seed cannot tell that from chance.", outcome(result, best)),
          {}};
}

/// When one side has nothing to show.
Verdict judge_incomplete(const CompareResult& result, const Match& best) {
  if (result.orders.size() < 2)
    return {"Nothing to compare", "Undecided: only `rr` was run; name others in --orders.", {}};
  if (best.baseline == nullptr && best.other == nullptr)
    return {"Every run diverged", "Undecided: every run diverged; try smaller rates in --lr.", {}};
  if (best.baseline == nullptr) {
    return {"Random reshuffling diverged",
            "Undecided: `rr` diverged at every rate, so there is nothing to compare with; try smaller rates "
            "in --lr.",
            {}};
  }
  return {"No: every other order diverged",
          fmt::format("No: every order but `rr` diverged at every rate, and `rr` ends at {}.",
                      final_text(*best.baseline)),
          {}};
}

/// Of many that are all alike, the best looks better than it is.
void note_choice(const CompareResult& result, const Match& best, std::vector<std::string>& notes) {
  if (!best.complete() || best.standing() != Standing::kBelow || result.orders.size() < 4) return;
  const double gap = best.baseline_final().mean - best.other_final().mean;
  const double deviation = std::hypot(best.baseline_final().deviation, best.other_final().deviation);
  if (gap > 3.0 * deviation) return;
  const std::string& order = best.other->recipe.order;
  notes.push_back(
      fmt::format("`{}` is the best of {} orders and less than 3 deviations below: it may be chance; "
                  "confirm it with --orders 'rr,{}' and other seeds",
                  order, result.orders.size() - 1, order));
}

/// An epoch of an order costs more than one of the baseline, which could be given more of them.
void note_clock(const CompareResult& result, const std::vector<Entry>& entries, const Match& best,
                std::vector<std::string>& notes) {
  if (!best.complete() || best.standing() != Standing::kBelow) return;
  const Entry& other = *best.other;
  const auto is_twin = [&](const Entry& entry) {
    return is_baseline(entry) && entry.recipe.schedule == other.recipe.schedule &&
           entry.recipe.average == other.recipe.average;
  };
  const Entry* twin = lowest_entry(entries, is_twin);
  const double epoch = relative_cost(result, other.recipe.order).time;
  if (twin == nullptr || !twin->reached || !other.reached || !std::isfinite(epoch)) return;
  const double spent = epoch * static_cast<double>(*other.reached);
  const std::string there =
      fmt::format("`{}` takes the time of {:.1f} epochs of `{}` to be as low as that is after {}",
                  name_of(other.recipe), spent, name_of(twin->recipe), *twin->reached);
  notes.push_back(spent <= static_cast<double>(*twin->reached)
                      ? "by the clock as well: " + there
                      : "not by the clock: " + there +
                            "; give `rr` more --epochs to see which ends lower in equal time");
}

void note_edges(const std::vector<Entry>& entries, std::vector<std::string>& notes) {
  for (const auto& [edge, way] : {std::pair{Edge::kLowest, "smaller"}, std::pair{Edge::kHighest, "larger"}}) {
    std::vector<std::string> names;
    for (const Entry& entry : entries) {
      if (entry.best && entry.edge == edge) names.push_back(fmt::format("`{}`", name_of(entry.recipe)));
    }
    if (names.empty()) continue;
    notes.push_back(fmt::format("best at the {} rate tried: {}; extend --lr to {} ones",
                                edge == Edge::kLowest ? "smallest" : "largest", fmt::join(names, ", "), way));
  }
}

void note_divergence(const std::vector<Entry>& entries, std::vector<std::string>& notes) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    if (!entry.best) names.push_back(fmt::format("`{}`", name_of(entry.recipe)));
  }
  if (!names.empty())
    notes.push_back(fmt::format("diverged at every rate, for at least one seed: {}", fmt::join(names, ", ")));
}

/// Losses below the "optimum": it is known no better than that.
void note_optimum(const CompareResult& result, const std::vector<Entry>& entries,
                  std::vector<std::string>& notes) {
  if (!result.optimum) return;
  double lowest = 0.0;
  for (const Entry& entry : entries) {
    for (const RateSummary& rate : entry.rates) lowest = std::fmin(lowest, rate.final.low);
  }
  if (lowest < 0.0) {
    notes.push_back(
        fmt::format("a run ended {} below the optimum, which is thus known no better than that; "
                    "smaller differences mean nothing",
                    format_short(-lowest)));
  }
}

void note_baseline(const CompareResult& result, std::vector<std::string>& notes) {
  const bool one_schedule = result.schedules.size() == 1 && result.schedules.front() == "constant";
  if (one_schedule && result.averages.size() == 1 && result.averages.front() == "none") {
    notes.emplace_back(
        "`rr` was tried at constant rates only; one that falls, or averaged weights, is the harder baseline: "
        "add --schedule constant,cosine or --average none,tail");
  }
  if (result.rates.size() == 1)
    notes.emplace_back("one rate was tried, which may favour any of them; give --lr several");
  if (result.seeds.size() == 2)
    notes.emplace_back("two seeds give a poor estimate of their deviation; --seeds 3 or more");
}

}  // namespace

std::string name_of(const Recipe& recipe) {
  std::string name = recipe.order;
  if (recipe.schedule != "constant") name += ", " + recipe.schedule;
  if (recipe.average != "none") name += ", " + recipe.average + " average";
  return name;
}

Verdict judge(const CompareResult& result, const std::vector<Entry>& entries) {
  const Match best = match_among(entries, [](const Entry&) { return true; });
  const Match plain = match_among(entries, is_plain);
  Verdict verdict = best.complete() ? judge_match(result, best, plain) : judge_incomplete(result, best);
  note_clock(result, entries, best, verdict.notes);
  note_choice(result, best, verdict.notes);
  note_edges(entries, verdict.notes);
  note_divergence(entries, verdict.notes);
  note_optimum(result, entries, verdict.notes);
  note_baseline(result, verdict.notes);
  return verdict;
}

}  // namespace cdgrab::cli
