// SPDX-License-Identifier: Apache-2.0
#include "compare/page.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "cdgrab/version.hpp"
#include "compare/print.hpp"
#include "format.hpp"
#include "report.hpp"

namespace cdgrab::cli {
namespace {

/// `this` as “this”.
std::string quoted(const std::string& text) {
  std::string out;
  bool open = false;
  for (const char c : text) {
    if (c != '`') {
      out += c;
      continue;
    }
    out += open ? "\u201d" : "\u201c";
    open = !open;
  }
  return out;
}

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

Role role_of(const Recipe& recipe) {
  return recipe.order == kBaselineOrder ? Role::kBaseline : Role::kCompared;
}

Table summary_table(const CompareResult& result, const std::vector<Entry>& entries) {
  Table table{"",
              {"", "Best rate", capitalised(loss_name(result)), "Max \u2212 min", "rr\u2019s best by epoch",
               capitalised(result.metric), "Time", "Memory"},
              {}};
  for (const Entry& entry : entries) {
    const RelativeCost cost = relative_cost(result, entry.recipe.order);
    if (!entry.best) {
      table.rows.push_back({name_of(entry.recipe), "\u2013", "diverged", "", "", "", "", ""});
      continue;
    }
    const RateSummary& best = entry.at_best();
    table.rows.push_back({name_of(entry.recipe), best_rate_text(entry),
                          format_deviation(best.final.mean, best.final.deviation), seeds_spread_text(entry),
                          entry.reached ? std::to_string(*entry.reached) : "never",
                          std::isfinite(best.metric) ? format_number(best.metric) : "\u2013", time_text(cost),
                          memory_text(cost)});
  }
  return table;
}

/// Without an optimum the first epochs fall so far that the rest would be one flat line: the axis ends where
/// the highest order is after a fifth of the epochs.
std::optional<double> top_of(const CompareResult& result, const std::vector<Series>& series) {
  if (result.optimum || result.epochs < 5) return std::nullopt;
  double top = -std::numeric_limits<double>::infinity();
  for (const Series& one : series) {
    for (std::size_t epoch = result.epochs / 5; epoch < one.high.size(); ++epoch)
      top = std::fmax(top, one.high[epoch]);
  }
  return std::isfinite(top) ? std::optional(top) : std::nullopt;
}

std::string y_label(const CompareResult& result, bool log) {
  return loss_name(result) + (log ? ", log scale" : "");
}

std::vector<double> epochs_of(const CompareResult& result) {
  std::vector<double> x;
  for (std::size_t epoch = 0; epoch <= result.epochs; ++epoch) x.push_back(static_cast<double>(epoch));
  return x;
}

/// The seconds at which each epoch ends; empty if the order's cost was not measured.
std::vector<double> seconds_of(const CompareResult& result, const std::string& order) {
  std::vector<double> x;
  for (const Cost& cost : result.costs) {
    if (cost.order != order) continue;
    for (const double epoch : epochs_of(result)) x.push_back(epoch * cost.seconds());
  }
  return x;
}

Series series_of(const Entry& entry, std::vector<double> x, Curve curve) {
  x.resize(curve.mean.size(), kNotThere);
  return {entry.recipe.order,    std::move(x),         std::move(curve.mean),
          role_of(entry.recipe), std::move(curve.low), std::move(curve.high)};
}

/// A series for every entry, so that an order has the same colour in every chart, drawn or not.
Series best_curve(const CompareResult& result, const Entry& entry, std::vector<double> x) {
  if (!entry.best) return series_of(entry, {}, {});
  return series_of(entry, std::move(x), loss_curve(result, entry.recipe, entry.at_best().rate));
}

std::string ends_text(std::span<const Entry> entries) {
  std::string text;
  for (const Entry& entry : entries) {
    text += fmt::format(" {}: {}.", entry.recipe.order,
                        entry.best ? format_number(entry.at_best().final.mean) : "diverged");
  }
  return text;
}

Chart epochs_chart(const CompareResult& result, std::span<const Entry> entries, const std::string& id) {
  Chart chart;
  chart.id = id + "epochs";
  chart.title = "Loss against epochs";
  chart.description =
      "Mean over seeds after each epoch, each order at its best rate. At the end," + ends_text(entries);
  chart.x_label = "epochs";
  chart.log_y = result.optimum.has_value();
  chart.y_label = y_label(result, chart.log_y);
  chart.whole_x = true;
  for (const Entry& entry : entries) chart.series.push_back(best_curve(result, entry, epochs_of(result)));
  chart.top = top_of(result, chart.series);
  return chart;
}

Chart seconds_chart(const CompareResult& result, std::span<const Entry> entries, const std::string& id) {
  Chart chart = epochs_chart(result, entries, id);
  chart.id = id + "seconds";
  chart.title = "Loss against seconds";
  chart.x_label = "seconds of training";
  chart.whole_x = false;
  chart.series.clear();
  for (const Entry& entry : entries)
    chart.series.push_back(best_curve(result, entry, seconds_of(result, entry.recipe.order)));
  return chart;
}

Series rate_series(const Entry& entry) {
  Series series{entry.recipe.order, {}, {}, role_of(entry.recipe), {}, {}};
  for (const RateSummary& rate : entry.rates) {
    series.x.push_back(rate.rate);
    series.y.push_back(rate.final.mean);
    series.low.push_back(rate.diverged > 0 ? kNotThere : rate.final.low);
    series.high.push_back(rate.diverged > 0 ? kNotThere : rate.final.high);
  }
  return series;
}

Chart rates_chart(const CompareResult& result, std::span<const Entry> entries, const std::string& id) {
  Chart chart;
  chart.id = id + "rates";
  chart.title = "Final loss against the learning rate";
  chart.description = "Mean over seeds after the last epoch, at every rate tried. Best," + ends_text(entries);
  chart.x_label = "learning rate, log scale";
  chart.y_label = y_label(result, true);
  chart.log_x = true;
  chart.log_y = true;
  for (const Entry& entry : entries) chart.series.push_back(rate_series(entry));
  return chart;
}

/// "Constant rate, tail average".
std::string section_title(const Recipe& recipe) {
  const std::string schedule =
      recipe.schedule == "constant" ? "constant rate" : recipe.schedule + " schedule";
  return capitalised(recipe.average == "none" ? schedule
                                              : fmt::format("{}, {} average", schedule, recipe.average));
}

/// The rates at which the figures show each order.
std::string rates_text(std::span<const Entry> entries) {
  std::vector<std::string> rates;
  std::set<double> distinct;
  for (const Entry& entry : entries) {
    if (!entry.best) continue;
    distinct.insert(entry.at_best().rate);
    rates.push_back(
        fmt::format("\u201c{}\u201d at {}", entry.recipe.order, format_short(entry.at_best().rate)));
  }
  if (rates.empty()) return "Every run diverged.";
  if (distinct.size() == 1)
    return fmt::format("All at rate {}, the best of each.", format_short(*distinct.begin()));
  return fmt::format("Each at its own best rate: {}.", fmt::join(rates, ", "));
}

/// `entries`: those of one schedule and average.
Section schedule_section(const CompareResult& result, std::span<const Entry> entries, const std::string& id) {
  Section section;
  section.title = section_title(entries.front().recipe);
  section.text = rates_text(entries);
  section.charts.push_back(epochs_chart(result, entries, id));
  if (!result.costs.empty()) section.charts.push_back(seconds_chart(result, entries, id));
  if (result.rates.size() > 1) section.charts.push_back(rates_chart(result, entries, id));
  return section;
}

bool has_bounds(const CompareResult& result) {
  return std::any_of(result.runs.begin(), result.runs.end(), [](const RunRecord& run) {
    return std::any_of(run.epochs.begin(), run.epochs.end(),
                       [](const EpochPoint& point) { return std::isfinite(point.bound); });
  });
}

Section herding_section(const CompareResult& result, std::span<const Entry> entries) {
  Chart chart;
  chart.id = "herding";
  chart.title = "Herding bound of each epoch\u2019s order";
  chart.description = "Mean over seeds; lower is better.";
  chart.x_label = "epochs";
  chart.y_label = "largest l\u221e norm of a prefix sum of gradients, log scale";
  chart.log_y = true;
  chart.whole_x = true;
  for (const Entry& entry : entries) {
    Curve curve = entry.best ? bound_curve(result, entry.recipe, entry.at_best().rate) : Curve{};
    chart.series.push_back(series_of(entry, epochs_of(result), std::move(curve)));
  }
  Section section;
  section.title = "How well the orders balance";
  section.text = fmt::format(
      "Add up how far each example\u2019s gradient is from their mean, in the order of the epoch: the bound "
      "is how far "
      "the sum strays at worst. {}; each at its best rate.",
      section_title(entries.front().recipe));
  section.charts.push_back(std::move(chart));
  return section;
}

Bars cost_bars(const CompareResult& result) {
  Bars bars;
  bars.id = "cost";
  bars.title = "Seconds of one epoch";
  bars.description = "By what they are spent on.";
  bars.parts = {"forward, backward, step", "observing", "ordering"};
  for (const Cost& cost : result.costs) {
    bars.bars.push_back({cost.order,
                         {cost.step_seconds, cost.observe_seconds, cost.order_seconds},
                         fmt::format("{} \u00b7 {}", format_duration(cost.seconds()),
                                     time_text(relative_cost(result, cost.order)))});
  }
  return bars;
}

Table cost_table(const CompareResult& result) {
  Table table{"",
              {"Order", "Forward, backward, step", "Observing", "Ordering", "Beside plain", "Peak memory",
               "Beside plain"},
              {}};
  for (const Cost& cost : result.costs) {
    const RelativeCost relative = relative_cost(result, cost.order);
    table.rows.push_back({cost.order, format_duration(cost.step_seconds),
                          format_duration(cost.observe_seconds), format_duration(cost.order_seconds),
                          time_text(relative), format_bytes(cost.peak_bytes), memory_text(relative)});
  }
  return table;
}

Section cost_section(const CompareResult& result) {
  Section section;
  section.title = "What it costs";
  section.text = result.cost_method;
  section.bars.push_back(cost_bars(result));
  section.tables.push_back(cost_table(result));
  return section;
}

/// Where one run ended.
std::string end_text(const CompareResult& result, const Recipe& recipe, double rate, std::uint64_t seed) {
  for (const RunRecord& run : result.runs) {
    if (run.seed != seed || run.rate != rate || run.recipe != recipe) continue;
    if (run.diverged || run.epochs.empty()) return "diverged";
    return format_number(above_optimum(result, run.epochs.back().loss));
  }
  return "\u2013";
}

/// Order, schedule and average at one rate: every seed's end.
Table runs_table(const CompareResult& result, const std::vector<Entry>& entries) {
  Table table{"Every run", {"", "Rate", "Mean"}, {}};
  for (const std::uint64_t seed : result.seeds) table.head.push_back(fmt::format("Seed {}", seed));
  table.head.push_back(capitalised(result.metric));
  for (const Entry& entry : entries) {
    for (const RateSummary& rate : entry.rates) {
      std::vector<std::string> row = {name_of(entry.recipe), format_short(rate.rate),
                                      format_deviation(rate.final.mean, rate.final.deviation)};
      for (const std::uint64_t seed : result.seeds)
        row.push_back(end_text(result, entry.recipe, rate.rate, seed));
      row.push_back(std::isfinite(rate.metric) ? format_number(rate.metric) : "\u2013");
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

Table equal_rates_table(const CompareResult& result, const std::vector<Entry>& entries) {
  Table table{fmt::format("{} at equal rates", capitalised(loss_name(result))), {""}, {}};
  for (const double rate : result.rates) table.head.push_back(format_short(rate));
  for (const Entry& entry : entries) {
    table.rows.push_back({name_of(entry.recipe)});
    for (const RateSummary& rate : entry.rates) {
      table.rows.back().push_back(format_deviation(rate.final.mean, kNotThere));
    }
  }
  return table;
}

std::vector<std::pair<std::string, std::string>> settings_of(const CompareResult& result) {
  std::vector<std::pair<std::string, std::string>> settings = {{"Task", result.task}};
  std::vector<std::string> rates;
  for (const double rate : result.rates) rates.push_back(format_short(rate));
  for (const auto& [name, value] : result.settings) settings.emplace_back(capitalised(name), value);
  settings.insert(settings.end(),
                  {{"Orders", fmt::format("{}", fmt::join(result.orders, ", "))},
                   {"Schedules", fmt::format("{}", fmt::join(result.schedules, ", "))},
                   {"Averages", fmt::format("{}", fmt::join(result.averages, ", "))},
                   {"Rates", fmt::format("{}", fmt::join(rates, ", "))},
                   {"Seeds", fmt::format("{}", fmt::join(result.seeds, ", "))},
                   {"Epochs", std::to_string(result.epochs)},
                   {"Optimum", result.optimum ? fmt::format("{:.10g}", *result.optimum) : "not known"},
                   {"Version", fmt::format("cdgrab {}", version())}});
  return settings;
}

/// How to read the table and the figures.
std::string legend_text(const CompareResult& result) {
  const std::string lines =
      result.seeds.size() == 1
          ? "Lines are one seed"
          : fmt::format("Lines are means over {} seeds, and bands reach from the lowest seed to the highest",
                        result.seeds.size());
  return fmt::format(
      "\u201crr\u201d is random reshuffling, what one does without cdgrab. For each seed all start from the "
      "same weights "
      "and the same first order. {}. \u201crr\u2019s best by epoch\u201d is when an order was first as low "
      "as rr ever was "
      "with the same schedule; time and memory are beside plain training. * marks a best rate at the edge of "
      "those "
      "tried.",
      lines);
}

}  // namespace

std::string compare_page(const CompareResult& result, const std::vector<Entry>& entries,
                         const Verdict& verdict) {
  Page page;
  page.kicker = fmt::format("cdgrab compare \u00b7 {}", result.task);
  page.headline = quoted(verdict.headline);
  page.lead = quoted(verdict.sentence);
  page.summary = summary_table(result, entries);
  page.caption = legend_text(result);
  for (const std::string& note : verdict.notes) page.notes.push_back(capitalised(quoted(note)) + ".");
  const std::size_t orders = result.orders.size();
  for (std::size_t first = 0; first < entries.size(); first += orders) {
    page.sections.push_back(schedule_section(result, std::span(entries).subspan(first, orders),
                                             fmt::format("f{}", first / orders)));
  }
  if (has_bounds(result)) page.sections.push_back(herding_section(result, std::span(entries).first(orders)));
  if (!result.costs.empty()) page.sections.push_back(cost_section(result));
  if (result.rates.size() > 1) page.details.push_back(equal_rates_table(result, entries));
  page.details.push_back(runs_table(result, entries));
  page.settings = settings_of(result);
  page.command = result.command;
  page.footer = fmt::format("Written by cdgrab {}.", version());
  return render_page(page);
}

}  // namespace cdgrab::cli
