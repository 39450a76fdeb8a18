// SPDX-License-Identifier: Apache-2.0
// A geometry in scalars, for vectors that are dear to touch (on a device, spread over ranks, never
// formed): the inner products of a block's rows and the registers are measured once, everything that
// balancing does is done on those numbers, and the registers are changed once, when the block ends.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cdgrab/geometry.hpp"

namespace cdgrab {

class GramGeometry : public Geometry {
 public:
  [[nodiscard]] std::size_t block_size() const override { return rows_; }
  /// Numbers are cheap: the whole block at once.
  [[nodiscard]] std::size_t group_size(bool differences, bool root) const override;
  void declare(std::vector<std::string> names) override;
  void form(std::span<const Vector> group) override;
  void products(std::span<const Register> against, Wanted wanted, Products& out) override;
  void combine(Register target, std::span<const Weighted> weights) override;
  void blend(Register target, double scale, const Operand& operand) override;
  void clear(Register target) override;
  double norm2(std::size_t row) override;
  /// Whether |row|^2 is.
  bool finite(std::size_t row) override;
  void end_block() override;

 protected:
  /// What a register becomes: sum_j weights[j] * b_j over the basis, which is the rows of the block and
  /// then the live registers as they were when the block began. No weights: zero.
  struct Change {
    Register target = 0;
    std::vector<double> weights;
  };

  /// A block of `rows` rows is there. To be called by the derived class when it is.
  void begin_block(std::size_t rows);
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  /// The registers that are not zero, ascending.
  [[nodiscard]] std::vector<Register> live() const;
  /// To be called when registers have been loaded.
  void set_live(std::vector<bool> live);

  /// Inner products of the basis, a symmetric matrix row by row, rows + live.size() square: those of the
  /// rows with everything, and those of `centring` (some of the live ones) with every live register. The
  /// others are not looked at. Rows that are not finite may have any product that is not finite.
  virtual void measure(std::span<const Register> live, std::span<const Register> centring,
                       std::span<double> gram) = 0;
  /// Carries the changes out, all at once: each from the registers as they were. A weight of exactly 0
  /// means that the row plays no part, whatever it holds.
  virtual void apply(std::span<const Register> live, std::span<const Change> changes) = 0;

 private:
  /// A register as a combination of the basis, and its products with every element of it.
  struct Symbol {
    std::vector<double> weights;
    std::vector<double> products;
  };

  /// A vector of the group, with the few places where its weights are not zero.
  struct Member {
    Symbol symbol;
    std::vector<std::size_t> nonzero;
  };

  void measure_once();
  void remeasure();
  bool lacks_products(const Symbol& symbol);
  [[nodiscard]] Symbol with_products(std::vector<double> weights) const;
  void blend_registers(Register target, double scale, const Operand& operand);
  void settle();
  [[nodiscard]] std::size_t basis_index(const Operand& operand) const;
  [[nodiscard]] Symbol symbol_of(const Operand& operand) const;
  void add(Symbol& to, double weight, const Symbol& from) const;
  void set_register(Register target, Symbol value);
  [[nodiscard]] double product(const Member& x, const Symbol& y) const;

  std::vector<std::string> names_;
  std::vector<bool> live_;  ///< per register
  /// Per register: it has been part of a vector of a group (a mean, a carry), so that its products with
  /// other registers matter. Most never are.
  std::vector<bool> centring_;
  std::size_t rows_ = 0;
  bool measured_ = false;
  std::vector<Register> basis_registers_;
  std::vector<double> gram_;
  std::vector<std::optional<Symbol>> registers_;  ///< of the measured block; absent: zero
  std::vector<bool> changed_;
  std::vector<Member> group_;
};

}  // namespace cdgrab
