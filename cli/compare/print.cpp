// SPDX-License-Identifier: Apache-2.0
#include "compare/print.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "cdgrab/version.hpp"
#include "columns.hpp"
#include "format.hpp"

namespace cdgrab::cli {
namespace {

using json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

std::vector<std::string> best_row(const CompareResult& result, const Entry& entry) {
  const RelativeCost cost = relative_cost(result, entry.recipe.order);
  std::vector<std::string> row = {entry.recipe.order, entry.recipe.schedule, entry.recipe.average};
  if (!entry.best) {
    row.insert(row.end(), {"- ", "diverged"});
    return row;
  }
  const Spread& final = entry.at_best().final;
  // The space keeps digits above each other beside rates with a mark.
  row.push_back(best_rate_text(entry) + (entry.edge == Edge::kInside ? " " : ""));
  row.push_back(format_deviation(final.mean, final.deviation));
  row.push_back(seeds_spread_text(entry));
  row.push_back(entry.reached ? std::to_string(*entry.reached) : "never");
  row.push_back(time_text(cost));
  row.push_back(memory_text(cost));
  return row;
}

std::string best_table(const CompareResult& result, const std::vector<Entry>& entries) {
  Rows rows = {{"order", "schedule", "average", "best rate ", loss_name(result), "max - min",
                "rr's best by epoch", "time", "memory"}};
  for (const Entry& entry : entries) rows.push_back(best_row(result, entry));
  return align_columns(rows, 3);
}

/// Nothing when there is one rate, which the other table shows.
std::string rates_table(const CompareResult& result, const std::vector<Entry>& entries) {
  if (result.rates.size() < 2) return "";
  Rows rows = {{"at equal rates", "schedule", "average"}};
  for (const double rate : result.rates) rows.front().push_back(format_short(rate));
  for (const Entry& entry : entries) {
    rows.push_back({entry.recipe.order, entry.recipe.schedule, entry.recipe.average});
    for (const RateSummary& rate : entry.rates) {
      rows.back().push_back(format_deviation(rate.final.mean, kNotThere));
    }
  }
  return "\n" + align_columns(rows, 3);
}

bool has_mark(const std::vector<Entry>& entries) {
  return std::any_of(entries.begin(), entries.end(),
                     [](const Entry& entry) { return entry.best && entry.edge != Edge::kInside; });
}

/// At spaces, where a line would be longer than a terminal that is not narrow.
std::string wrapped(const std::string& text, const std::string& indent) {
  constexpr std::size_t kLine = 100;
  std::string out;
  std::string line;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > kLine) {
      out += line + "\n";
      line = indent;
    } else if (!line.empty()) {
      line += ' ';
    }
    line += word;
  }
  return out + line + "\n";
}

/// JSON has no infinity and no NaN.
json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json as_json(const Spread& spread) {
  return {{"mean", number(spread.mean)},
          {"deviation", number(spread.deviation)},
          {"min", number(spread.low)},
          {"max", number(spread.high)}};
}

const char* edge_word(Edge edge) {
  switch (edge) {
    case Edge::kLowest:
      return "lowest";
    case Edge::kHighest:
      return "highest";
    case Edge::kOnlyRate:
      return "only";
    case Edge::kInside:
      break;
  }
  return "inside";
}

json as_json(const CompareResult& result, const Entry& entry) {
  json rates = json::array();
  for (const RateSummary& rate : entry.rates) {
    rates.push_back({{"rate", rate.rate},
                     {"final", as_json(rate.final)},
                     {"metric", number(rate.metric)},
                     {"diverged", rate.diverged}});
  }
  const RelativeCost cost = relative_cost(result, entry.recipe.order);
  return {{"order", entry.recipe.order},
          {"schedule", entry.recipe.schedule},
          {"average", entry.recipe.average},
          {"best_rate", entry.best ? json(entry.at_best().rate) : json(nullptr)},
          {"edge", entry.best ? json(edge_word(entry.edge)) : json(nullptr)},
          {"final", entry.best ? as_json(entry.at_best().final) : json(nullptr)},
          {"reached_rr_best_at_epoch", entry.reached ? json(*entry.reached) : json(nullptr)},
          {"time_beside_plain", number(cost.time)},
          {"bytes_beside_plain", number(cost.bytes)},
          {"rates", std::move(rates)}};
}

}  // namespace

std::string loss_name(const CompareResult& result) {
  return result.optimum ? "loss above the optimum" : "loss";
}

std::string time_text(const RelativeCost& cost) {
  return std::isfinite(cost.time) ? fmt::format("{:.2f}x", cost.time) : "-";
}

std::string memory_text(const RelativeCost& cost) {
  if (!std::isfinite(cost.bytes)) return "-";
  return (cost.bytes >= 0.0 ? "+" : "") + format_bytes(cost.bytes);
}

std::string best_rate_text(const Entry& entry) {
  if (!entry.best) return "-";
  return format_short(entry.at_best().rate) + (entry.edge == Edge::kInside ? "" : "*");
}

std::string seeds_spread_text(const Entry& entry) {
  if (!entry.best || std::isnan(entry.at_best().final.deviation)) return "-";
  return fmt::format("{:#.2g}", entry.at_best().final.high - entry.at_best().final.low);
}

std::string compare_tables(const CompareResult& result, const std::vector<Entry>& entries,
                           const Verdict& verdict) {
  std::string out = best_table(result, entries);
  if (has_mark(entries)) out += "* the best rate lies at the edge of those tried\n";
  out += rates_table(result, entries);
  out += "\n" + wrapped(verdict.sentence, "");
  for (const std::string& note : verdict.notes) out += wrapped("- " + note, "  ");
  return out;
}

std::string compare_summary_line(const CompareResult& result, const std::vector<Entry>& entries,
                                 const Verdict& verdict) {
  json rows = json::array();
  for (const Entry& entry : entries) rows.push_back(as_json(result, entry));
  json settings = json::object();
  for (const auto& [name, value] : result.settings) settings[name] = value;
  const json line = {{"event", "summary"},
                     {"version", version()},
                     {"command", result.command},
                     {"task", result.task},
                     {"epochs", result.epochs},
                     {"seeds", result.seeds},
                     {"optimum", result.optimum ? json(*result.optimum) : json(nullptr)},
                     {"metric", result.metric},
                     {"settings", std::move(settings)},
                     {"entries", std::move(rows)},
                     {"verdict", verdict.sentence},
                     {"notes", verdict.notes}};
  // A path in the command need not be UTF-8; JSON must be.
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace cdgrab::cli
