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

/// Mean and deviation to the same place, two digits of the deviation: "0.3245 ± 0.0012", "6.93e-05
/// ± 7.0e-07"; the mean alone when there is no deviation.
std::string format_deviation(double mean, double deviation);

/// "850 ms", "12 s", "3 min 20 s", "2 h 05 min".
std::string format_duration(double seconds);

/// "12 MB", "-0.3 MB".
std::string format_bytes(double bytes);

}  // namespace cdgrab::cli
