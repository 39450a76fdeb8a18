// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cdgrab/version.hpp"
#include "columns.hpp"
#include "format.hpp"
#include "simulate/simulate.hpp"

namespace cdgrab::cli {
namespace {

using json = nlohmann::ordered_json;

/// Paths need not be UTF-8; JSON must be.
void print(const json& line) {
  fmt::print("{}\n", line.dump(-1, ' ', false, json::error_handler_t::replace));
  std::fflush(stdout);
}

/// Names of the two figures.
std::pair<std::string, std::string> keys(const SimulateResult& result) {
  return result.task.empty() ? std::pair{"linf", "l2"} : std::pair{"train_loss", "value"};
}

json as_json(const StepBytes& bytes) {
  return {{"averaging", bytes.averaging},
          {"heads", bytes.heads},
          {"vectors", bytes.vectors},
          {"sums", bytes.sums}};
}

}  // namespace

void print_simulate_lane(const SimulateResult& result) {
  const SimulatedLane& lane = result.lanes.back();
  const auto [first, second] = keys(result);
  for (std::size_t round = 0; round < lane.rounds.size(); ++round)
    print({{"event", "round"},
           {"workers", lane.workers},
           {"order", lane.order},
           {"round", round},
           {first, lane.rounds[round].first},
           {second, lane.rounds[round].second}});
}

void print_simulate_table(const SimulateResult& result) {
  const std::string after = fmt::format("after {}", result.lanes.front().rounds.size() - 1);
  std::vector<std::vector<std::string>> rows = {{"workers", "order", result.first + " at first", after,
                                                 result.second + " at first", after, "time",
                                                 "added bytes/step", "beside averaging"}};
  for (const SimulatedLane& lane : result.lanes) {
    rows.push_back({std::to_string(lane.workers), lane.order, format_number(lane.rounds.front().first),
                    format_number(lane.rounds.back().first), format_number(lane.rounds.front().second),
                    format_number(lane.rounds.back().second), format_duration(lane.seconds),
                    format_number(lane.bytes.added()),
                    result.task.empty() ? "-" : format_number(lane.bytes.averaging)});
  }
  fmt::print("{}", align_columns(rows, 2));
}

void print_simulate_summary(const SimulateOptions& options, const SimulateResult& result) {
  const auto [first, second] = keys(result);
  json lanes = json::array();
  for (const SimulatedLane& lane : result.lanes)
    lanes.push_back({{"workers", lane.workers},
                     {"order", lane.order},
                     {first, lane.rounds.back().first},
                     {second, lane.rounds.back().second},
                     {"seconds", lane.seconds},
                     {"bytes_per_step", as_json(lane.bytes)}});
  print({{"event", "summary"},
         {"version", version()},
         {"command", options.command_line},
         {"task", result.task.empty() ? json() : json(result.task)},
         {"metric", result.task.empty() ? json() : json(result.second)},
         {"examples", result.examples},
         {"dim", result.dim},
         {"batch", result.batch},
         {"split", result.split},
         {"rounds", options.rounds},
         {"seed", result.seed},
         {"lanes", lanes}});
}

}  // namespace cdgrab::cli
