// SPDX-License-Identifier: Apache-2.0
#include "format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace cdgrab::cli {
namespace {

/// Whether all digits before the point are shown, and none after.
bool is_plain_size(double value) {
  const double size = std::abs(value);
  return size == 0.0 || (size >= 1000.0 && size < 1e7);
}

}  // namespace

std::string format_number(double value) {
  return is_plain_size(value) ? format_short(value) : fmt::format("{:#.4g}", value);
}

std::string format_short(double value) {
  return is_plain_size(value) ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::string format_gain(double gain) {
  if (!std::isfinite(gain)) return "-";
  return gain >= 9.95 ? fmt::format("{:.0f}", gain) : fmt::format("{:#.2g}", gain);
}

std::string format_deviation(double mean, double deviation) {
  if (!std::isfinite(mean)) return "diverged";
  if (std::abs(mean) < 1e-3 || std::abs(mean) >= 1e6) {
    return std::isnan(deviation) ? fmt::format("{:.2e}", mean)
                                 : fmt::format("{:.2e} \u00b1 {:.1e}", mean, deviation);
  }
  const int size = static_cast<int>(std::floor(std::log10(std::abs(mean))));
  if (!(deviation > 0.0)) {
    const std::string text = fmt::format("{:.{}f}", mean, std::max(0, 3 - size));
    return std::isnan(deviation) ? text : text + " \u00b1 0";
  }
  const int digits = std::clamp(1 - static_cast<int>(std::floor(std::log10(deviation))), 0, 9);
  return fmt::format("{0:.{2}f} \u00b1 {1:.{2}f}", mean, deviation, digits);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 0.00095) return fmt::format("{:.2g} ms", seconds * 1e3);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<long long>(std::lround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string format_bytes(double bytes) {
  if (!std::isfinite(bytes)) return "-";
  const double megabytes = bytes / 1e6;
  return std::abs(megabytes) < 9.95 ? fmt::format("{:.1f} MB", megabytes)
                                    : fmt::format("{:.0f} MB", megabytes);
}

}  // namespace cdgrab::cli
