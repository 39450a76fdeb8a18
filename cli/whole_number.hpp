// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <CLI/Validators.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

namespace cdgrab::cli {

/// Checked as text, since a conversion would let -1 pass as a huge number.
inline CLI::Validator whole_number(std::uint64_t least,
                                   std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
  const auto check = [=](const std::string& text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool fits =
        error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most;
    return fits ? "" : fmt::format("`{}` must be a whole number from {} to {}", text, least, most);
  };
  return CLI::Validator(check, "");
}

}  // namespace cdgrab::cli
