// SPDX-License-Identifier: Apache-2.0
#include "format.hpp"

#include <fmt/format.h>

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

}  // namespace cdgrab::cli
