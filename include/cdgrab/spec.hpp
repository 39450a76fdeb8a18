// SPDX-License-Identifier: Apache-2.0
// One description string for an ordering: the CLI flag, the Python argument and what a state stores.
//   pair
//   mean; sign=walk,c=30
//   recursive; depth=4; sketch=gauss:256
// A name, then options in any order, separated by ';' or ','. parse(print(x)) == x.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cdgrab/sign_rule.hpp"
#include "cdgrab/sketch.hpp"

namespace cdgrab {

/// The named orderings. The first five and cd-pair and id-pair balance gradients; the others need none,
/// except greedy. The last three are of many workers.
enum class OrderName {
  kMean,
  kPair,
  kBatch,
  kRecursive,
  kRecursivePair,
  kRandomReshuffling,
  kShuffleOnce,
  kFixed,
  kFlipFlop,
  kBlockReversal,
  kWithReplacement,
  kGreedy,
  kScore,
  kFile,
  kCoordinatedPair,
  kIndependentPair,
  kDistributedReshuffling,
};

/// What is balanced (docs/math.md, section 2).
enum class Centring { kNone, kMean, kPair, kEma };

/// Defaults are those of `pair`; parse_spec fills in what the name implies.
struct Spec {
  OrderName name = OrderName::kPair;

  Centring centring = Centring::kPair;
  double beta = 0.9;       ///< ema only
  bool normalize = false;  ///< x <- x/|x| first
  std::size_t depth = 0;   ///< 0: one accumulator; D: a tree of D+1 levels
  bool frozen = false;     ///< the accumulators stand still within a block
  std::size_t block = 0;   ///< frozen: examples in a block, 0 = what is observed at once;
                           ///< block-reversal: examples in a block
  SignOptions sign;
  SketchOptions sketch;

  std::size_t every = 1;  ///< vectors matter in epochs 0, every, 2 every, ..; the order is kept between
  std::size_t unit = 1;   ///< consecutive examples ordered as one
  bool fused = false;     ///< observed losses: autograd takes over the sums of the gradients read off it
  bool reshuffle = true;  ///< block-reversal: reshuffle the blocks
  bool reverse = true;    ///< block-reversal: every second epoch reverses the one before
  std::string path;       ///< file

  bool operator==(const Spec&) const = default;

  /// True for those that turn observed vectors into signs.
  [[nodiscard]] bool balances() const;
  /// True for the orders of many workers, which a DistributedSampler makes and a Sampler does not.
  [[nodiscard]] bool distributed() const;
  /// Bits of a code: depth + 1.
  [[nodiscard]] unsigned levels() const { return static_cast<unsigned>(depth) + 1; }
};

/// Throws UserError; an unknown word is answered with the nearest allowed one, a combination
/// that makes no sense with the reason.
Spec parse_spec(std::string_view text);

/// The canonical text: the name, then what differs from its defaults.
std::string print_spec(const Spec& spec);

/// Splits "rr,mean; sign=walk,c=30,pair" into three: a piece that is a bare name opens a new spec.
std::vector<Spec> parse_spec_list(std::string_view text);

/// One line per order name and per option, for --help and the docs.
std::string describe_specs();

}  // namespace cdgrab
