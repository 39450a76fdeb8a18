// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "cdgrab/version.hpp"
#include "format.hpp"
#include "report.hpp"
#include "simulate/simulate.hpp"

namespace cdgrab::cli {
namespace {

constexpr std::string_view kRandom = "d-rr";

const SimulatedLane& lane_of(const SimulateResult& result, std::size_t workers, std::size_t order) {
  return result.lanes[workers * result.orders.size() + order];
}

std::string bytes_text(double bytes) {
  if (bytes < 1e3) return fmt::format("{:.0f} B", bytes);
  return bytes < 1e6 ? fmt::format("{:.1f} kB", bytes / 1e3) : format_bytes(bytes);
}

Role role_of(const std::string& order) { return order == kRandom ? Role::kBaseline : Role::kCompared; }

std::string headline(const SimulateResult& result) {
  const std::size_t most = static_cast<std::size_t>(
      std::max_element(result.workers.begin(), result.workers.end()) - result.workers.begin());
  const auto last = [&](std::size_t order) { return lane_of(result, most, order).rounds.back().first; };
  std::size_t best = 0;
  std::size_t worst = 0;
  for (std::size_t k = 0; k < result.orders.size(); ++k) {
    if (last(k) < last(best)) best = k;
    if (last(k) > last(worst)) worst = k;
  }
  const std::string what =
      result.task.empty() ? "worst prefix error" : fmt::format("training loss on {}", result.task);
  if (best == worst)
    return fmt::format("{} workers: the {} ends at {}", result.workers[most], what,
                       format_number(last(best)));
  return fmt::format("{} workers: \u201c{}\u201d ends with a {} of {}, \u201c{}\u201d with {}",
                     result.workers[most], result.orders[best], what, format_number(last(best)),
                     result.orders[worst], format_number(last(worst)));
}

std::string lead(const SimulateResult& result) {
  if (result.task.empty())
    return "Every worker visits its own share of the vectors in its own order; at each time the next vector "
           "of "
           "every worker enters one sum. How far the sum of the centred vectors strays from zero at worst is "
           "the "
           "herding bound of the parallel order. cd-pair signs the pairs of all workers with one "
           "accumulator, "
           "id-pair gives each worker its own, d-rr reshuffles.";
  return fmt::format(
      "In every step {} examples are shared out to the workers, and all make the same step with the mean of "
      "their "
      "gradients. cd-pair signs the pairs of all workers with one accumulator, id-pair gives each worker its "
      "own, "
      "d-rr reshuffles. Losses are over all training examples.",
      result.batch);
}

Table summary_table(const SimulateResult& result) {
  Table table{"",
              {"Workers and order", result.first + ", first", result.first + ", last",
               result.second + ", first", result.second + ", last", "bytes added per step"},
              {}};
  for (const SimulatedLane& lane : result.lanes)
    table.rows.push_back({fmt::format("{} \u00d7 {}", lane.workers, lane.order),
                          format_number(lane.rounds.front().first), format_number(lane.rounds.back().first),
                          format_number(lane.rounds.front().second), format_number(lane.rounds.back().second),
                          bytes_text(lane.bytes.added())});
  return table;
}

Chart by_workers(const SimulateResult& result) {
  Chart chart;
  chart.id = "workers";
  chart.title = fmt::format("{} after the last round, by workers", result.first);
  chart.description = "For each order. Lower is better.";
  chart.x_label = "workers, log scale";
  chart.y_label = result.task.empty() ? "largest norm of a prefix sum, log scale" : "loss";
  chart.log_x = true;
  chart.log_y = result.task.empty();
  for (std::size_t k = 0; k < result.orders.size(); ++k) {
    Series series{result.orders[k], {}, {}, role_of(result.orders[k])};
    for (std::size_t w = 0; w < result.workers.size(); ++w) {
      series.x.push_back(static_cast<double>(result.workers[w]));
      series.y.push_back(lane_of(result, w, k).rounds.back().first);
      chart.description += fmt::format(" {}, {} workers: {}.", result.orders[k], result.workers[w],
                                       format_number(series.y.back()));
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Chart by_rounds(const SimulateResult& result, std::size_t w) {
  Chart chart;
  chart.id = fmt::format("rounds{}", w);
  chart.title = fmt::format("{} workers", result.workers[w]);
  chart.description = fmt::format("{} after each round, for each order. Lower is better.", result.first);
  chart.x_label = result.task.empty() ? "rounds of balancing behind the order" : "epochs";
  chart.y_label =
      result.task.empty() ? "largest l\u221e norm of a prefix sum, log scale" : "training loss, log scale";
  chart.log_y = true;
  chart.whole_x = true;
  for (std::size_t k = 0; k < result.orders.size(); ++k) {
    Series series{result.orders[k], {}, {}, role_of(result.orders[k])};
    const SimulatedLane& lane = lane_of(result, w, k);
    for (std::size_t round = 0; round < lane.rounds.size(); ++round) {
      series.x.push_back(static_cast<double>(round));
      series.y.push_back(lane.rounds[round].first);
    }
    chart.description += fmt::format(" {}: from {} to {}.", lane.order, format_number(series.y.front()),
                                     format_number(series.y.back()));
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Section bytes_section(const SimulateResult& result) {
  Section section;
  section.title = "Bytes per step";
  section.text =
      "What one rank sends in a step if every worker is a rank of its own, counted. Averaging of gradients "
      "is what "
      "data-parallel training sends anyway; the rest is what the order adds.";
  Bars bars{
      "bytes", "Sent by a rank in a step", "", {"averaging", "headers", "vectors", "sums of products"}, {}};
  for (const SimulatedLane& lane : result.lanes) {
    const StepBytes& b = lane.bytes;
    if (b.averaging + b.added() == 0.0) continue;
    bars.bars.push_back({fmt::format("{} \u00d7 {}", lane.workers, lane.order),
                         {b.averaging, b.heads, b.vectors, b.sums},
                         bytes_text(b.averaging + b.added())});
    bars.description += fmt::format("{} workers, {}: {} beside {} of averaging. ", lane.workers, lane.order,
                                    bytes_text(b.added()), bytes_text(b.averaging));
  }
  if (!bars.bars.empty()) section.bars.push_back(std::move(bars));
  Table table{"", {"Workers and order", "averaging", "headers", "vectors", "sums", "added"}, {}};
  for (const SimulatedLane& lane : result.lanes) {
    const StepBytes& b = lane.bytes;
    table.rows.push_back({fmt::format("{} \u00d7 {}", lane.workers, lane.order), bytes_text(b.averaging),
                          bytes_text(b.heads), bytes_text(b.vectors), bytes_text(b.sums),
                          bytes_text(b.added())});
  }
  section.tables.push_back(std::move(table));
  return section;
}

Table rounds_table(const SimulateResult& result) {
  Table table{fmt::format("Every round: {}, {}", result.first, result.second), {"Round"}, {}};
  for (const SimulatedLane& lane : result.lanes)
    table.head.push_back(fmt::format("{} \u00d7 {}", lane.workers, lane.order));
  for (std::size_t round = 0; round < result.lanes.front().rounds.size(); ++round) {
    std::vector<std::string> row = {std::to_string(round)};
    for (const SimulatedLane& lane : result.lanes)
      row.push_back(fmt::format("{}, {}", format_number(lane.rounds[round].first),
                                format_number(lane.rounds[round].second)));
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

std::string simulate_page(const SimulateOptions& options, const SimulateResult& result) {
  Page page;
  page.kicker = "cdgrab simulate";
  page.headline = headline(result);
  page.lead = lead(result);
  page.summary = summary_table(result);
  if (result.workers.size() > 1) {
    page.sections.emplace_back();
    page.sections.back().charts = {by_workers(result)};
  }
  page.sections.emplace_back();
  page.sections.back().title = "Round by round";
  for (std::size_t w = 0; w < result.workers.size(); ++w)
    page.sections.back().charts.push_back(by_rounds(result, w));
  page.sections.push_back(bytes_section(result));
  page.details = {rounds_table(result)};
  page.settings = {
      {result.task.empty() ? "Vectors" : "Task",
       result.task.empty() ? "generated, independent N(0, 1/dim)" : result.task},
      {"Examples", std::to_string(result.examples)},
      {result.task.empty() ? "Dimension" : "Parameters", std::to_string(result.dim)},
      {"Split", result.split},
      {result.task.empty() ? "Vectors of a worker in a step" : "Examples in a step",
       std::to_string(result.batch)},
      {"Rounds", std::to_string(options.rounds)},
      {"Seed", std::to_string(result.seed)},
      {"Version", fmt::format("cdgrab {}", version())},
  };
  page.command = options.command_line;
  page.footer = fmt::format(
      "Written by cdgrab {}. The same command with the same version gives the same page.", version());
  return render_page(page);
}

}  // namespace cdgrab::cli
