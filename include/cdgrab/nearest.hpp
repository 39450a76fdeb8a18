// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the allowed word nearest to one that is not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace cdgrab {

/// Insertions, deletions and replacements that turn one word into the other. O(|a| |b|).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// The one of `words` at the smallest distance from `word`; of equals the one that begins most like
/// it. Empty if there are no words. Only the first 64 characters of `word` are looked at.
inline std::string_view nearest_word(std::string_view word, std::span<const std::string_view> words) {
  word = word.substr(0, 64);
  std::string_view nearest;
  std::pair<std::size_t, std::size_t> least{std::numeric_limits<std::size_t>::max(),
                                            0};  // distance, characters not shared at the beginning
  for (const std::string_view candidate : words) {
    const auto split = std::mismatch(word.begin(), word.end(), candidate.begin(), candidate.end()).first;
    const auto rest = static_cast<std::size_t>(word.end() - split);
    const std::pair<std::size_t, std::size_t> here{edit_distance(word, candidate), rest};
    if (here < least) {
      least = here;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace cdgrab
