// SPDX-License-Identifier: Apache-2.0
#include "bars.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "svg.hpp"

namespace cdgrab::cli {
namespace {

constexpr double kWidth = 760.0;
constexpr double kTop = 34.0;  // the legend
constexpr double kStride = 30.0;
constexpr double kThickness = 18.0;
constexpr double kCharacter = 8.0;  // generous width of one
constexpr std::size_t kLongestName = 26;

std::string part_class(std::size_t part) {
  return part == 0 ? "part baseline" : fmt::format("part s{}", part - 1);
}

double total(const Bar& bar) { return std::accumulate(bar.values.begin(), bar.values.end(), 0.0); }

double room_for(const std::vector<Bar>& bars, std::string Bar::*text) {
  std::size_t longest = 0;
  for (const Bar& bar : bars) longest = std::max(longest, std::min((bar.*text).size(), kLongestName));
  return kCharacter * static_cast<double>(longest) + 10.0;
}

std::string draw_legend(const Bars& bars) {
  std::string out = "<g class=\"grid\">\n";
  double x = 0.0;
  for (std::size_t part = 0; part < bars.parts.size(); ++part) {
    out += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"4\" width=\"11\" height=\"11\"/>"
        "<text x=\"{:.1f}\" y=\"14\">{}</text>\n",
        part_class(part), x, x + 17.0, escape_html(bars.parts[part]));
    x += 40.0 + kCharacter * static_cast<double>(bars.parts[part].size());
  }
  return out + "</g>\n";
}

std::string draw_bar(const Bars& bars, const Bar& bar, double left, double scale, double y) {
  const double middle = y + kThickness / 2.0 + 4.5;
  std::string out = fmt::format("<g class=\"bar\"><text x=\"0\" y=\"{:.1f}\">{}</text>", middle,
                                escape_html(shortened(bar.name, kLongestName)));
  double x = left;
  for (std::size_t part = 0; part < bar.values.size(); ++part) {
    const double width = bar.values[part] * scale;
    out += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\">"
        "<title>{}, {}</title></rect>",
        part_class(part), x, y, width, kThickness, escape_html(bar.name), escape_html(bars.parts[part]));
    x += width;
  }
  return out + fmt::format("<text class=\"total\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text></g>\n", x + 8.0, middle,
                           escape_html(bar.text));
}

}  // namespace

std::string render_svg(const Bars& bars) {
  double longest = 0.0;
  for (const Bar& bar : bars.bars) longest = std::max(longest, total(bar));
  const double left = room_for(bars.bars, &Bar::name);
  const double space = kWidth - left - room_for(bars.bars, &Bar::text);
  const double scale = longest > 0.0 ? space / longest : 0.0;
  std::string drawing = draw_legend(bars);
  double y = kTop;
  for (const Bar& bar : bars.bars) {
    drawing += draw_bar(bars, bar, left, scale, y);
    y += kStride;
  }
  return svg_frame(bars.id, bars.title, bars.description, kWidth, y, drawing);
}

}  // namespace cdgrab::cli
