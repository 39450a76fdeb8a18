// SPDX-License-Identifier: Apache-2.0
// Line charts as inline SVG. Colours come from the page's style sheet (report.cpp), so one drawing
// serves light, dark and print.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace cdgrab::cli {

enum class Role {
  kCompared,   ///< in a colour of its own
  kBaseline,   ///< what others are compared with: grey
  kReference,  ///< a level, not a run: grey, thin and dashed
};

struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;  ///< as many; a value that cannot be drawn leaves a gap
  Role role = Role::kCompared;
  std::vector<double> low = {};  ///< a band around the line, as many as y; empty: none
  std::vector<double> high = {};
};

struct Chart {
  std::string id;  ///< unique on the page, letters and digits
  std::string title;
  std::string description;  ///< for those who cannot see it
  std::string x_label;
  std::string y_label;
  bool log_x = false;
  bool log_y = false;         ///< otherwise the axis fits the values and need not show zero
  bool whole_x = false;       ///< x counts something: marks at whole numbers only
  std::optional<double> top;  ///< of the y axis; what is above is cut off
  std::vector<Series> series;
};

/// Lines named at their ends, so no legend has to be looked up.
std::string render_svg(const Chart& chart);

}  // namespace cdgrab::cli
