// SPDX-License-Identifier: Apache-2.0
// Where the vectors live. A geometry never hands out coordinates; it answers with inner products,
// and that is all that balancing asks for (docs/design.md, section 1).
//
// It holds the block (the rows being observed, put there by whoever owns them) and the registers
// (named vectors that stay: accumulators, means, carries). A balancer works on a few rows at a time:
//
//   form(group)               these vectors next, each a row or the difference of two things
//   products(against, ..)     their inner products with registers, and with each other
//   combine(register, ..)     register += sum of weighted vectors of the group
//
// combine() may be carried out late, together with the next products(), as long as nobody can tell.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace cdgrab {

class State;

/// A register's number, in the order in which they were declared.
using Register = std::size_t;

/// A row of the block or a register, times a scale.
struct Operand {
  enum class Kind { kRow, kRegister };
  Kind kind = Kind::kRow;
  std::size_t index = 0;
  double scale = 1.0;

  static Operand row(std::size_t index, double scale = 1.0) { return {Kind::kRow, index, scale}; }
  static Operand reg(Register index, double scale = 1.0) { return {Kind::kRegister, index, scale}; }
  bool operator==(const Operand&) const = default;
};

/// first - second, or first alone.
struct Vector {
  Operand first;
  Operand second;
  bool has_second = false;
};

/// weight * (the vector at `index` of the group).
struct Weighted {
  std::size_t index = 0;
  double weight = 0.0;
};

/// What products() is asked for besides the products with registers.
struct Wanted {
  bool gram = false;
  bool norms = false;
};

/// gram is the strict lower triangle, row by row: <v_k, v_j> with j < k stands at k*(k-1)/2 + j.
struct Products {
  std::vector<double> inner;  ///< <v_k, against[k]>
  std::vector<double> gram;
  std::vector<double> norms;  ///< |v_k|^2
};

class Geometry {
 public:
  virtual ~Geometry() = default;

  /// Coordinates of a vector.
  [[nodiscard]] virtual std::size_t dim() const = 0;
  /// Rows of the current block.
  [[nodiscard]] virtual std::size_t block_size() const = 0;
  /// How many vectors it likes to have decided together, and the most that form() takes; at least 1.
  /// `differences`: the vectors are differences of rows, not rows less a common centre. `root`: they
  /// all meet the same accumulator. Never changes a result, only the cost.
  [[nodiscard]] virtual std::size_t group_size(bool differences, bool root) const = 0;

  /// Registers 0..names.size()-1, all zero. Called once, before anything else.
  virtual void declare(std::vector<std::string> names) = 0;

  /// The vectors that the next calls are about, at least one. Their operands must keep their values
  /// until the group has been combined; group_size() is the limit.
  virtual void form(std::span<const Vector> group) = 0;
  virtual void products(std::span<const Register> against, Wanted wanted, Products& out) = 0;
  virtual void combine(Register target, std::span<const Weighted> weights) = 0;

  /// target = scale * target + operand.
  virtual void blend(Register target, double scale, const Operand& operand) = 0;
  virtual void clear(Register target) = 0;

  /// |row|^2, and whether every coordinate of the row is finite.
  virtual double norm2(std::size_t row) = 0;
  virtual bool finite(std::size_t row) = 0;

  /// The rows are about to go: finish what was put off.
  virtual void end_block() = 0;

  /// The registers, under their names. load() throws StateMismatch and changes nothing if they do not fit.
  virtual void save(State& state) const = 0;
  virtual void load(const State& state) = 0;
};

}  // namespace cdgrab
