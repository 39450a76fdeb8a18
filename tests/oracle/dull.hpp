// SPDX-License-Identifier: Apache-2.0
// The algorithms of docs/math.md as the dullest possible loops: one vector at a time, everything in
// float64, a map from paths to accumulators. Written for reading; everything fast is tested against it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cdgrab/permutation.hpp"
#include "cdgrab/sign_rule.hpp"
#include "cdgrab/spec.hpp"

namespace cdgrab::oracle {

using Row = std::vector<double>;

/// One ordering over its epochs. Paths are strings of '+' and '-', the root's sign first.
class Dull {
 public:
  Dull(const Spec& spec, std::uint64_t seed, std::size_t n) : spec_(spec), sign_(spec.sign, seed, n) {}

  void begin_epoch(std::uint64_t epoch);
  /// The vector at `position`; positions may come in any order.
  void see(Index position, Row x);
  /// The end of an observed batch: matters to a frozen schedule without a block size.
  void end_batch();
  /// The order that follows `order`. A short unit keeps the last place, whatever its vector was.
  [[nodiscard]] std::vector<Index> next_order(const std::vector<Index>& order,
                                              bool last_is_short = false) const;
  void end_epoch();

  /// The smallest |<x,s>| / (|x||s|) met among decisions with a product that is not 0.
  [[nodiscard]] double smallest_margin() const { return smallest_margin_; }

 private:
  struct Waiting {
    Index position = 0;
    Row x;
  };
  struct Node {
    Row s;
    Row next_s;  ///< frozen: s when the block ends
    std::optional<Waiting> waiting;
  };

  void arrive(const std::string& path, Index position, const Row& x);
  int decide(const std::string& path, Index position, const Row& x);
  void thaw();

  Spec spec_;
  SignRule sign_;
  std::map<std::string, Node> nodes_;
  std::map<Index, std::string> paths_;  ///< position -> leaf
  Row mean_, sum_, ema_;
  std::size_t seen_ = 0;
  std::size_t in_block_ = 0;
  double smallest_margin_ = 1.0;
};

}  // namespace cdgrab::oracle
