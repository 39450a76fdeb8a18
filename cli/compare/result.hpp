// SPDX-License-Identifier: Apache-2.0
// What `cdgrab compare` trained and measured, as plain values: analysis, table and page start from here.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cdgrab::cli {

inline constexpr double kNotThere = std::numeric_limits<double>::quiet_NaN();

/// Everything about a way to train except the rate and the seed.
struct Recipe {
  std::string order;     ///< canonical spec
  std::string schedule;  ///< of the rate
  std::string average;   ///< of the weights

  auto operator<=>(const Recipe&) const = default;
};

/// After one epoch. What was not measured is NaN.
struct EpochPoint {
  double loss = kNotThere;    ///< mean over the training set; of the averaged weights where asked
  double metric = kNotThere;  ///< on the validation set
  double step_seconds = kNotThere;
  double observe_seconds = kNotThere;
  double order_seconds = kNotThere;
  double bound = kNotThere;  ///< herding bound of the order that was used, l-infinity

  bool operator==(const EpochPoint&) const = default;
};

struct RunRecord {
  Recipe recipe;
  double rate = 0.0;
  std::uint64_t seed = 0;
  std::vector<EpochPoint> epochs;  ///< [e] after e epochs; [0] is where it began
  bool diverged = false;           ///< `epochs` may then be short

  bool operator==(const RunRecord&) const = default;
};

/// One epoch of one order, alone on the machine.
struct Cost {
  std::string order;
  double step_seconds = 0.0;     ///< forward, backward, optimizer
  double observe_seconds = 0.0;  ///< what ordering adds to the steps
  double order_seconds = 0.0;    ///< making the next order
  double peak_bytes = 0.0;       ///< of the whole process

  [[nodiscard]] double seconds() const { return step_seconds + observe_seconds + order_seconds; }
};

/// The order that every other is compared with; always run.
inline constexpr const char* kBaselineOrder = "rr";

struct CompareResult {
  std::string task;
  std::string metric;  ///< what EpochPoint::metric is
  std::string command;
  std::vector<std::pair<std::string, std::string>> settings;

  std::vector<std::string> orders;  ///< kBaselineOrder first
  std::vector<std::string> schedules;
  std::vector<std::string> averages;
  std::vector<double> rates;  ///< ascending
  std::vector<std::uint64_t> seeds;
  std::size_t epochs = 0;

  std::optional<double> optimum;  ///< the smallest loss there is
  std::vector<RunRecord> runs;
  std::vector<Cost> costs;  ///< of each order, kBaselineOrder being plain training; empty: not measured
  std::string cost_method;  ///< how they were measured, a sentence
};

}  // namespace cdgrab::cli
