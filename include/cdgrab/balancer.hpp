// SPDX-License-Identifier: Apache-2.0
// Block -> codes. One engine for all five balancers, which are three choices each: what is balanced
// (centring), when the accumulators move (schedule), how deep their tree is (docs/math.md, section 3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cdgrab/code.hpp"
#include "cdgrab/geometry.hpp"
#include "cdgrab/sign_rule.hpp"
#include "cdgrab/spec.hpp"

namespace cdgrab {

class State;

class Balancer {
 public:
  /// For n units per epoch. spec.balances() must hold.
  Balancer(const Spec& spec, std::uint64_t seed, std::size_t n);

  /// The registers it needs, to be declared in every geometry it is used with, in this order.
  [[nodiscard]] std::vector<std::string> registers() const;

  void begin_epoch(std::uint64_t epoch);

  /// Balances the geometry's block; row k stands at positions[k] of the epoch's order, and
  /// codes[positions[k]] is set. At any moment the codes say where everything would go if the
  /// epoch ended now.
  void observe(Geometry& geometry, std::span<const Index> positions, std::span<Code> codes);

  /// Moves the mean on and clears the accumulators.
  void end_epoch(Geometry& geometry);

  void save(State& state) const;
  /// `codes`: those of the state's epoch. Throws StateMismatch; the balancer is then of no use any more.
  void load(const State& state, std::span<const Code> codes);
  /// Something waits for its partner, in a register.
  [[nodiscard]] bool waits() const;

 private:
  /// Something that has reached a node: a row or a register, and what it is.
  struct Arrival {
    Operand source;
    Index position = 0;
    std::uint32_t bits = 0;  ///< the signs so far
  };
  /// An arrival that waits at a node for its partner.
  struct Carry {
    bool waits = false;
    Arrival arrival;
  };
  /// One sign to be found: for `first`, and the opposite for `second` if there is one.
  struct Decision {
    Arrival first;
    Arrival second;
    std::size_t node = 0;
    int sign = 0;
  };
  struct Block;

  [[nodiscard]] bool pairs() const { return spec_.centring == Centring::kPair; }
  [[nodiscard]] std::size_t nodes() const { return (std::size_t{1} << spec_.levels()) - 1; }
  [[nodiscard]] Register accumulator(std::size_t node) const { return node; }
  [[nodiscard]] Register delta(std::size_t node) const { return nodes() + node; }
  [[nodiscard]] Register carry(std::size_t node) const;
  [[nodiscard]] Register centre() const;
  [[nodiscard]] Register total() const { return centre() + 1; }

  [[nodiscard]] std::size_t take(const Block& block) const;
  bool arrive(Block& block, std::size_t count);
  bool usable(Block& block, std::size_t count);
  void meet_all(Block& block, unsigned level);
  void meet(unsigned level, const Arrival& arrival, Block& block);
  bool decide_level(Block& block, unsigned level);
  void go_down(Block& block);
  bool decide(Block& block, unsigned level, std::span<Decision> decisions, bool first_time);
  void update(Block& block, unsigned level, std::span<const Decision> decisions);
  void descend(Block& block, unsigned level);
  void reject(Block& block, std::size_t count, std::span<const Decision> decisions);
  void after_group(Block& block, std::size_t count);
  void thaw(Geometry& geometry);
  void store_carries(Geometry& geometry);
  [[nodiscard]] Vector vector_of(const Decision& decision) const;

  Spec spec_;
  std::size_t n_;
  SignRule sign_;
  std::vector<Carry> carries_;         ///< per node; pair centring only
  std::vector<std::uint8_t> touched_;  ///< per node: its delta is not zero; frozen schedule only
  std::size_t in_block_ = 0;           ///< frozen: units since the accumulators last moved
  std::size_t seen_ = 0;               ///< units balanced in this epoch

  // Scratch, kept to avoid allocating per group.
  std::vector<Arrival> arrivals_;
  std::vector<Arrival> below_root_;
  std::vector<Decision> decisions_;
  std::vector<Vector> vectors_;
  std::vector<Register> against_;
  std::vector<Weighted> weights_;
  Products products_;
};

}  // namespace cdgrab
