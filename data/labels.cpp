// SPDX-License-Identifier: Apache-2.0
#include "data/labels.hpp"

#include <algorithm>

namespace cdgrab::data {

std::vector<std::int64_t> different_labels(std::vector<std::int64_t> labels) {
  std::ranges::sort(labels);
  const auto rest = std::ranges::unique(labels);
  labels.erase(rest.begin(), rest.end());
  return labels;
}

std::vector<std::int32_t> places_of(std::span<const std::int64_t> labels,
                                    std::span<const std::int64_t> names) {
  std::vector<std::int32_t> places;
  places.reserve(labels.size());
  for (const std::int64_t label : labels) {
    places.push_back(static_cast<std::int32_t>(std::ranges::lower_bound(names, label) - names.begin()));
  }
  return places;
}

}  // namespace cdgrab::data
