// SPDX-License-Identifier: Apache-2.0
// Orders: from an epoch that ended to the next one's order. `fold` serves the five balancers; the
// baselines look at other things, or at nothing (docs/math.md, section 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cdgrab/code.hpp"
#include "cdgrab/permutation.hpp"
#include "cdgrab/spec.hpp"

namespace cdgrab {

class RowRecord;

/// All that an order may look at. Units, not examples, where the two differ.
struct EpochEnd {
  std::uint64_t seed = 0;
  std::uint64_t next_epoch = 0;
  std::span<const Index> initial;      ///< the first epoch's order; empty unless keeps_initial()
  std::span<const Index> current;      ///< the order that was used
  std::span<const Code> codes;         ///< per position of it
  std::span<const double> scores;      ///< per unit; empty if none were given
  const RowRecord* vectors = nullptr;  ///< null unless keeps_vectors()
};

class Order {
 public:
  virtual ~Order() = default;
  /// The first epoch's order when the user gave none.
  [[nodiscard]] virtual std::vector<Index> first(std::uint64_t seed, std::size_t n) const;
  [[nodiscard]] virtual std::vector<Index> next(const EpochEnd& end) const = 0;

  /// False if an epoch may visit a unit twice.
  [[nodiscard]] virtual bool permutes() const { return true; }
  /// What must be kept for next().
  [[nodiscard]] virtual bool keeps_initial() const { return false; }
  [[nodiscard]] virtual bool keeps_vectors() const { return false; }
};

/// For n units. If the last is short, it keeps the last place (docs/math.md, section 4). Reads the order's
/// file, if it has one. Throws UserError, FileError.
std::unique_ptr<Order> make_order(const Spec& spec, std::size_t n, bool last_is_short = false);

}  // namespace cdgrab
