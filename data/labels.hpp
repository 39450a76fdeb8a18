// SPDX-License-Identifier: Apache-2.0
// Classes as files name them, by whole numbers, and as models count them, 0 .. k - 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cdgrab::data {

/// More different labels than this are taken for the numbers of a regression.
inline constexpr std::size_t kMaxClasses = 1000;

/// The different ones among `labels`, ascending.
std::vector<std::int64_t> different_labels(std::vector<std::int64_t> labels);

/// The place of each label in `names`, which ascend and have them all.
std::vector<std::int32_t> places_of(std::span<const std::int64_t> labels,
                                    std::span<const std::int64_t> names);

}  // namespace cdgrab::data
