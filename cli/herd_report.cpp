// SPDX-License-Identifier: Apache-2.0
#include "herd_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cdgrab/version.hpp"
#include "format.hpp"
#include "report.hpp"

namespace cdgrab::cli {
namespace {

std::string times(double gain) { return std::isfinite(gain) ? format_gain(gain) + "\u00d7" : "\u2013"; }

std::string headline(const HerdResult& result) {
  if (result.random.linf == 0.0) return "These vectors have no prefix error in any order";
  const Lane& best = *std::min_element(
      result.lanes.begin(), result.lanes.end(),
      [](const Lane& a, const Lane& b) { return a.bounds.back().linf < b.bounds.back().linf; });
  const double gain = gain_of(result, best).linf;
  if (gain < 1.05) return "No order here ends better than a random one";
  if (!std::isfinite(gain)) return fmt::format("\u201c{}\u201d leaves no prefix error at all", best.label);
  return fmt::format("\u201c{}\u201d ends {} below a random order", best.label, times(gain));
}

Table summary_table(const HerdResult& result) {
  Table table{"", {"Order", "l\u221e at the end", "below random", "l2 at the end", "below random"}, {}};
  table.rows.push_back({fmt::format("random (median of {})", kRandomOrders),
                        format_number(result.random.linf), "", format_number(result.random.l2), ""});
  for (const Lane& lane : result.lanes) {
    const Gain gain = gain_of(result, lane);
    const HerdingBound& last = lane.bounds.back();
    table.rows.push_back(
        {lane.label, format_number(last.linf), times(gain.linf), format_number(last.l2), times(gain.l2)});
  }
  return table;
}

bool is_random(const Lane& lane) { return lane.spec.name == OrderName::kRandomReshuffling; }

Chart bound_chart(const HerdResult& result, const std::string& id, const std::string& norm,
                  double HerdingBound::*value) {
  Chart chart;
  chart.id = id;
  chart.title = fmt::format("Worst prefix error, {}", norm);
  chart.description = "After each round, for each order. Lower is better.";
  chart.x_label = "rounds of balancing behind the order";
  chart.y_label = fmt::format("largest {} norm of a prefix sum, log scale", norm);
  chart.log_y = true;
  chart.whole_x = true;
  const std::size_t points = result.lanes.front().bounds.size();
  Series random{"random", {}, {}, Role::kReference};
  for (std::size_t round = 0; round < points; ++round) {
    random.x.push_back(static_cast<double>(round));
    random.y.push_back(result.random.*value);
  }
  for (const Lane& lane : result.lanes) {
    Series series{lane.label, random.x, {}, is_random(lane) ? Role::kBaseline : Role::kCompared};
    for (const HerdingBound& bound : lane.bounds) series.y.push_back(bound.*value);
    chart.series.push_back(std::move(series));
    chart.description +=
        fmt::format(" {}: from {} to {}.", lane.label, format_number(lane.bounds.front().*value),
                    format_number(lane.bounds.back().*value));
  }
  chart.series.push_back(std::move(random));
  return chart;
}

Table rounds_table(const HerdResult& result) {
  Table table{"Every round", {"Round"}, {}};
  for (const Lane& lane : result.lanes) {
    table.head.push_back(lane.label + " l\u221e");
    table.head.push_back(lane.label + " l2");
  }
  for (std::size_t round = 0; round < result.lanes.front().bounds.size(); ++round) {
    std::vector<std::string> row = {std::to_string(round)};
    for (const Lane& lane : result.lanes) {
      row.push_back(format_number(lane.bounds[round].linf));
      row.push_back(format_number(lane.bounds[round].l2));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

std::string herd_report(const HerdOptions& options, const HerdResult& result) {
  Page page;
  page.kicker = "cdgrab herd";
  page.headline = headline(result);
  page.lead =
      "Visit the vectors one after another and add up how far each is from their mean: the sum strays from "
      "zero and "
      "comes back. How far it strays at worst is the herding bound of the order; the smaller it is, the "
      "faster training "
      "is guaranteed to converge. Each round observes every vector once and makes the next order.";
  page.summary = summary_table(result);
  page.sections.emplace_back();
  page.sections.back().charts = {bound_chart(result, "linf", "l\u221e", &HerdingBound::linf),
                                 bound_chart(result, "l2", "l2", &HerdingBound::l2)};
  page.details = {rounds_table(result)};
  page.settings = {
      {"Vectors", options.file.empty() ? "generated, independent N(0, 1/dim)" : options.file},
      {"Examples", std::to_string(result.examples)},
      {"Dimension", fmt::format("{} ({})", result.dim, result.dtype)},
      {"Not finite", fmt::format("{} (passed over)", result.not_finite)},
      {"Shapes", options.shapes.empty() ? "not given" : options.shapes},
      {"Orders", options.order},
      {"Rounds", std::to_string(options.rounds)},
      {"Batch", std::to_string(options.batch)},
      {"Seed", std::to_string(options.seed)},
      {"Version", fmt::format("cdgrab {}", version())},
  };
  page.command = options.command_line;
  page.footer = fmt::format(
      "Written by cdgrab {}. The same command with the same version gives the same page.", version());
  return render_page(page);
}

}  // namespace cdgrab::cli
