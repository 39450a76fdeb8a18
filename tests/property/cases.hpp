// SPDX-License-Identifier: Apache-2.0
// Random cases: specs, integer-valued rows, cuts into batches. A case is a pure function of its number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cdgrab/random.hpp"
#include "cdgrab/spec.hpp"

namespace cdgrab::cases {

/// Sanitizers look for mistakes of the memory, which are in every case or in none: an eighth is enough there.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kShare = 8;
#else
inline constexpr std::uint64_t kShare = 1;
#endif
constexpr std::uint64_t number_of(std::uint64_t cases) { return cases / kShare; }

/// Orders that do not balance.
inline const std::vector<std::string> kBaselines = {"rr",
                                                    "so",
                                                    "fixed",
                                                    "flipflop",
                                                    "block-reversal; block=5",
                                                    "block-reversal; block=3; reverse=no",
                                                    "block-reversal; reshuffle=no",
                                                    "swr",
                                                    "greedy",
                                                    "score"};

/// Draws in sequence, from a seed.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  /// 0 .. below-1
  std::size_t roll(std::size_t below) {
    return uniform_below({seed_, Purpose::kData, 0, 0}, draws_++, below);
  }
  bool flip() { return roll(2) == 0; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[roll(from.size())];
  }

 private:
  std::uint64_t seed_;
  std::uint64_t draws_ = 0;
};

/// A spec of one of the five balancers under which everything is exact on integer-valued rows
/// (docs/math.md, section 7), except that `mean` centring wants n to be a power of two.
inline std::string balancing_spec(Dice& dice) {
  static const std::vector<std::string> kNames = {"mean", "pair", "batch", "recursive", "recursive-pair"};
  const std::string name = dice.pick(kNames);
  std::string text = name;
  if (name == "recursive" || name == "recursive-pair") text += "; depth=" + std::to_string(dice.roll(5));
  const bool pairs = name == "pair" || name == "recursive-pair";
  if (!pairs && dice.flip()) text += "; centring=none";
  if (name != "recursive-pair" && dice.roll(3) == 0) text += "; block=" + std::to_string(1 + dice.roll(9));
  switch (dice.roll(name == "pair" ? 4 : 3)) {
    case 0:
      text += dice.flip() ? "; tie=minus" : "";
      break;
    case 1:
      text += "; sign=walk,c=" + std::to_string(1 + dice.roll(60));
      break;
    case 2:
      break;
    default:
      text += "; sign=halving";
      break;
  }
  return text;
}

inline bool needs_power_of_two(const Spec& spec) { return spec.centring == Centring::kMean; }

/// n in 0..65, or a power of two where the mean must be exact.
inline std::size_t unit_count(Dice& dice, const Spec& spec) {
  return needs_power_of_two(spec) ? std::size_t{1} << dice.roll(7) : dice.roll(66);
}

/// Small integers, with zero rows and repeated rows among them.
inline std::vector<float> integer_rows(Dice& dice, std::size_t n, std::size_t dim) {
  std::vector<float> rows(n * dim);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t kind = dice.roll(8);
    for (std::size_t j = 0; j < dim; ++j) {
      float value = static_cast<float>(dice.roll(7)) - 3.0F;
      if (kind == 0) value = 0.0F;
      if (kind == 1 && i > 0) value = rows[(i - 1) * dim + j];
      rows[i * dim + j] = value;
    }
  }
  return rows;
}

}  // namespace cdgrab::cases
