// SPDX-License-Identifier: Apache-2.0
#include "chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "format.hpp"
#include "svg.hpp"

namespace cdgrab::cli {
namespace {

constexpr double kWidth = 760.0;
constexpr double kLeastHeight = 400.0;
constexpr double kEmptyHeight = 30.0;
constexpr double kLeft = 58.0;
constexpr double kTop = 34.0;
constexpr double kBottom = 48.0;
constexpr double kLabelGap = 17.0;
constexpr double kCharacter = 7.7;  // generous width of one at the label's size
constexpr std::size_t kLongestLabel = 26;
constexpr std::size_t kMostMarkers = 24;
constexpr std::size_t kColours = 8;  // before they repeat

/// Numbers to pixels along one axis.
struct Axis {
  double low = 0.0;
  double high = 1.0;
  bool log = false;
  double from = 0.0;  ///< pixel of low
  double to = 1.0;    ///< pixel of high
  std::vector<double> ticks;

  [[nodiscard]] bool holds(double v) const { return std::isfinite(v) && (!log || v > 0.0); }
  [[nodiscard]] double place(double v) const {
    const double a = log ? std::log10(low) : low;
    const double b = log ? std::log10(high) : high;
    return from + (to - from) * ((log ? std::log10(v) : v) - a) / (b - a);
  }
};

double nice_step(double span, double pieces) {
  const double raw = span / pieces;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10.0 * power;
}

std::vector<double> linear_ticks(double low, double high, double step) {
  std::vector<double> ticks;
  for (double k = std::ceil(low / step); k * step <= high + step * 1e-9; k += 1.0) ticks.push_back(k * step);
  return ticks;
}

/// Powers of ten over a wide range; 1, 2, 5 times them over a narrow one.
std::vector<double> log_ticks(double low, double high) {
  const double decades = std::log10(high / low);
  const double stride = std::max(1.0, std::ceil(decades / 6.0));
  std::vector<double> ticks;
  for (double p = std::floor(std::log10(low)); p <= std::log10(high); p += stride) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1.0 && decades > 2.5) continue;
      const double tick = factor * std::pow(10.0, p);
      if (tick >= low && tick <= high) ticks.push_back(tick);
    }
  }
  return ticks;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  [[nodiscard]] bool empty() const { return !(low <= high); }
  void cover(const std::vector<double>& values, bool positive) {
    for (const double v : values) {
      if (!std::isfinite(v) || (positive && v <= 0.0)) continue;
      low = std::min(low, v);
      high = std::max(high, v);
    }
  }
};

/// Of the points that have a y.
Range x_range(const Chart& chart) {
  Range range;
  for (const Series& series : chart.series) {
    std::vector<double> shown;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (std::isfinite(series.y[i])) shown.push_back(series.x[i]);
    }
    range.cover(shown, chart.log_x);
  }
  return range;
}

Range y_range(const Chart& chart) {
  Range range;
  for (const Series& series : chart.series) {
    for (const auto* values : {&series.y, &series.low, &series.high}) range.cover(*values, chart.log_y);
  }
  return range;
}

/// Between marks, or where a power of ten is too far away, even steps serve a logarithmic axis too.
std::vector<double> ticks_for(const Range& range, bool log, double step) {
  if (log) {
    std::vector<double> ticks = log_ticks(range.low, range.high);
    if (ticks.size() > 2) return ticks;
  }
  return linear_ticks(range.low, range.high, step);
}

Axis make_x_axis(const Chart& chart, double right) {
  Range range = x_range(chart);
  if (!(range.low < range.high)) range.high = chart.log_x ? 2.0 * range.low : range.low + 1.0;
  const double step = nice_step(range.high - range.low, 10.0);
  Axis axis{range.low, range.high, chart.log_x, kLeft, right, {}};
  axis.ticks = ticks_for(range, chart.log_x, chart.whole_x ? std::max(1.0, step) : step);
  return axis;
}

/// A little wider than the values, and never of no width.
Range padded(Range range, bool log) {
  if (log) {
    const double pad = std::max(1.02, std::pow(range.high / range.low, 0.04));
    return {range.low / pad, range.high * pad};
  }
  const double pad = 0.04 * (range.high - range.low);
  if (pad > 0.0) return {range.low - pad, range.high + pad};
  const double around = range.low == 0.0 ? 1.0 : 0.1 * std::abs(range.low);
  return {range.low - around, range.high + around};
}

Axis make_y_axis(const Chart& chart, double bottom) {
  Range shown = y_range(chart);
  if (chart.top && *chart.top > shown.low) shown.high = std::min(shown.high, *chart.top);
  const Range range = padded(shown, chart.log_y);
  Axis axis{range.low, range.high, chart.log_y, bottom, kTop, {}};
  axis.ticks = ticks_for(range, chart.log_y, nice_step(range.high - range.low, 6.0));
  return axis;
}

std::string draw_grid(const Chart& chart, const Axis& x, const Axis& y) {
  std::string out = "<g class=\"grid\">\n";
  for (const double tick : y.ticks) {
    const double at = y.place(tick);
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        x.from, x.to, at, x.from - 8.0, at + 4.0, format_short(tick));
  }
  for (const double tick : x.ticks) {
    const double at = x.place(tick);
    out += fmt::format(
        "<line class=\"tick\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4}</text>\n",
        at, y.from, y.from + 5.0, y.from + 20.0, format_short(tick));
  }
  out += fmt::format("<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n",
                     x.from, x.to, y.from);
  out += fmt::format("<text class=\"name\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                     (x.from + x.to) / 2.0, y.from + kBottom - 8.0, escape_html(chart.x_label));
  return out +
         fmt::format("<text class=\"name\" x=\"0\" y=\"14\">{}</text>\n</g>\n", escape_html(chart.y_label));
}

/// One closed shape per stretch without a gap. What falls below a logarithmic axis ends at its foot.
std::string draw_band(const Series& series, const Axis& x, const Axis& y) {
  const auto place_low = [&](double v) { return y.place(y.log ? std::max(v, y.low) : v); };
  std::string shapes;
  std::string forth;
  std::string back;
  const auto close = [&] {
    if (!forth.empty()) shapes += "M" + forth.substr(1) + back + "Z";
    forth.clear();
    back.clear();
  };
  for (std::size_t i = 0; i < series.low.size(); ++i) {
    if (!x.holds(series.x[i]) || !y.holds(series.high[i]) || !std::isfinite(series.low[i])) {
      close();
      continue;
    }
    const double px = x.place(series.x[i]);
    forth += fmt::format("L{:.1f} {:.1f}", px, y.place(series.high[i]));
    back = fmt::format("L{:.1f} {:.1f}", px, place_low(series.low[i])) + back;
  }
  close();
  return shapes.empty() ? "" : fmt::format("<path class=\"band\" d=\"{}\"/>", shapes);
}

/// The path of a line with gaps, its markers, and the band behind them.
std::string draw_series(const Series& series, const std::string& colour, const Axis& x, const Axis& y) {
  std::string path;
  std::string markers;
  bool pen_down = false;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    const bool drawable = x.holds(series.x[i]) && y.holds(series.y[i]);
    if (drawable) {
      const double px = x.place(series.x[i]);
      const double py = y.place(series.y[i]);
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", px, py);
      if (series.role != Role::kReference && series.x.size() <= kMostMarkers) {
        markers += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", px, py);
      }
    }
    pen_down = drawable;
  }
  if (path.empty()) return "";
  return fmt::format("<g class=\"{}\"><title>{}</title>{}<path d=\"{}\"/>{}</g>\n", colour,
                     escape_html(series.name), draw_band(series, x, y), path, markers);
}

/// A line's name beside its last point.
struct EndLabel {
  std::string text;
  std::string colour;
  double point_x = 0.0;
  double point_y = 0.0;
  double y = 0.0;
};

/// Moves labels apart, keeping their sequence and staying near their points.
void spread(std::vector<EndLabel>& labels, double top, double bottom) {
  std::stable_sort(labels.begin(), labels.end(),
                   [](const auto& a, const auto& b) { return a.point_y < b.point_y; });
  double least = top;
  for (EndLabel& label : labels) {
    label.y = std::max(label.point_y, least);
    least = label.y + kLabelGap;
  }
  double most = bottom;
  for (auto label = labels.rbegin(); label != labels.rend(); ++label) {
    label->y = std::min(label->y, most);
    most = label->y - kLabelGap;
  }
}

std::string draw_labels(std::vector<EndLabel> labels, double right, double bottom) {
  spread(labels, kTop, bottom);
  std::string out = "<g class=\"ends\">\n";
  for (const EndLabel& label : labels) {
    out += fmt::format(
        "<g class=\"{}\"><line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text></g>\n",
        label.colour, label.point_x + 5.0, label.point_y, right + 16.0, label.y, right + 20.0, label.y + 4.0,
        escape_html(label.text));
  }
  return out + "</g>\n";
}

double label_room(const Chart& chart) {
  std::size_t longest = 0;
  for (const Series& series : chart.series)
    longest = std::max(longest, std::min(series.name.size(), kLongestLabel));
  return 24.0 + kCharacter * static_cast<double>(longest + 10);  // the name, and the value it ends with
}

EndLabel end_label(const Series& series, const std::string& colour, const Axis& x, const Axis& y) {
  for (std::size_t i = series.x.size(); i-- > 0;) {
    if (!x.holds(series.x[i]) || !y.holds(series.y[i])) continue;
    const std::string text =
        fmt::format("{} {}", shortened(series.name, kLongestLabel), format_number(series.y[i]));
    return {text, colour, x.place(series.x[i]), y.place(series.y[i]), 0.0};
  }
  return {};
}

/// The colour of the k-th series compared.
std::string series_class(std::size_t k) {
  return fmt::format("s{}{}", k % kColours, k >= kColours ? " again" : "");
}

std::string role_class(Role role) { return role == Role::kReference ? "reference" : "baseline"; }

/// Room for a label each.
double height_of(const Chart& chart) {
  return std::max(kLeastHeight, kTop + kBottom + kLabelGap * static_cast<double>(chart.series.size()));
}

std::string draw_all(const Chart& chart) {
  const double right = kWidth - label_room(chart);
  const double bottom = height_of(chart) - kBottom;
  const Axis x = make_x_axis(chart, right);
  const Axis y = make_y_axis(chart, bottom);
  std::string out = draw_grid(chart, x, y);
  // An image within the image hides what leaves it.
  if (chart.top) {
    out += fmt::format(
        "<svg x=\"0\" y=\"{0:.1f}\" width=\"{1:.1f}\" height=\"{2:.1f}\" viewBox=\"0 {0:.1f} {1:.1f} "
        "{2:.1f}\">\n",
        kTop - 4.0, kWidth, bottom - kTop + 8.0);
  }
  std::vector<EndLabel> labels;
  std::size_t k = 0;
  for (const Series& series : chart.series) {
    const std::string colour =
        "series " + (series.role == Role::kCompared ? series_class(k++) : role_class(series.role));
    out += draw_series(series, colour, x, y);
    labels.push_back(end_label(series, colour, x, y));
  }
  if (chart.top) out += "</svg>\n";
  std::erase_if(labels, [](const EndLabel& label) { return label.text.empty(); });
  return out + draw_labels(std::move(labels), right, bottom);
}

}  // namespace

std::string render_svg(const Chart& chart) {
  const bool empty = x_range(chart).empty() || y_range(chart).empty();
  if (empty) {
    return svg_frame(
        chart.id, chart.title, chart.description, kWidth, kEmptyHeight,
        fmt::format("<text class=\"empty\" x=\"0\" y=\"20\">Nothing to draw: no value{}.</text>\n",
                    chart.log_y ? " above zero" : ""));
  }
  return svg_frame(chart.id, chart.title, chart.description, kWidth, height_of(chart), draw_all(chart));
}

}  // namespace cdgrab::cli
