// SPDX-License-Identifier: Apache-2.0
// Vectors in several pieces, each in a geometry of its own: some coordinates as rows in memory, others
// never formed. Products add up; everything else goes to all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cdgrab/geometry.hpp"

namespace cdgrab {

class CompositeGeometry : public Geometry {
 public:
  struct Part {
    std::string name;  ///< what the part's keys in a state begin with
    std::unique_ptr<Geometry> geometry;
  };

  /// All parts must hold blocks of the same number of rows when they are used.
  explicit CompositeGeometry(std::vector<Part> parts);
  /// One more, whose registers are zero: coordinates that have been zero so far.
  void add(Part part);

  [[nodiscard]] std::size_t dim() const override;
  [[nodiscard]] std::size_t block_size() const override;
  [[nodiscard]] std::size_t group_size(bool differences, bool root) const override;
  void declare(std::vector<std::string> names) override;
  void form(std::span<const Vector> group) override;
  void products(std::span<const Register> against, Wanted wanted, Products& out) override;
  void combine(Register target, std::span<const Weighted> weights) override;
  void blend(Register target, double scale, const Operand& operand) override;
  void clear(Register target) override;
  double norm2(std::size_t row) override;
  bool finite(std::size_t row) override;
  void end_block() override;
  void save(State& state) const override;
  void load(const State& state) override;

 protected:
  /// Of the registers.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<Part> parts_;
  std::vector<std::string> names_;
  std::vector<Geometry*> forming_;  ///< parts that the group's vectors have coordinates in
  Products of_part_;
};

}  // namespace cdgrab
