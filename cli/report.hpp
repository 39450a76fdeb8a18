// SPDX-License-Identifier: Apache-2.0
// Self-contained HTML pages: no script, nothing fetched, light and dark, fit to print.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bars.hpp"
#include "chart.hpp"

namespace cdgrab::cli {

/// Cells are text, escaped when the page is made. The first column names the row.
struct Table {
  std::string title;
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

/// Figures and tables that belong together.
struct Section {
  std::string title;  ///< empty: the figures follow without one
  std::string text;
  std::vector<Chart> charts;
  std::vector<Bars> bars;
  std::vector<Table> tables;
};

/// The parts of a page, top to bottom.
struct Page {
  std::string kicker;  ///< the small line above the headline
  std::string headline;
  std::string lead;
  Table summary;
  std::string caption;             ///< how to read it
  std::vector<std::string> notes;  ///< what to know before believing it
  std::vector<Section> sections;
  std::vector<Table> details;
  std::vector<std::pair<std::string, std::string>> settings;
  std::string command;
  std::string footer;
};

std::string render_page(const Page& page);

}  // namespace cdgrab::cli
