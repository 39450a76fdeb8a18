// SPDX-License-Identifier: Apache-2.0
// Stacked bars as inline SVG: of what a whole is made up, for several wholes.
#pragma once

#include <string>
#include <vector>

namespace cdgrab::cli {

struct Bar {
  std::string name;
  std::vector<double> values;  ///< one per part, none negative
  std::string text;            ///< written behind the bar
};

struct Bars {
  std::string id;  ///< unique on the page, letters and digits
  std::string title;
  std::string description;
  std::vector<std::string> parts;  ///< the first in grey, the others in colours
  std::vector<Bar> bars;
};

std::string render_svg(const Bars& bars);

}  // namespace cdgrab::cli
