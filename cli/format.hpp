// SPDX-License-Identifier: Apache-2.0
// Numbers for people.
#pragma once

#include <string>

namespace cdgrab::cli {

/// Four significant digits, without an exponent where that reads well: 0, 0.01234, 2.400, 96.13, 123457.
std::string format_number(double value);

/// The same without zeros at the end: 2, 0.5.
std::string format_short(double value);

/// How many times smaller: "40", "3.0", "0.98"; "-" when there is nothing to compare.
std::string format_gain(double gain);

}  // namespace cdgrab::cli
