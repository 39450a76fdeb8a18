// SPDX-License-Identifier: Apache-2.0
// The geometry of an observed backward: every parameter is a piece, as rows in memory where forming them
// is cheap, in scalars where it is not.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cdgrab/composite_geometry.hpp"
#include "cdgrab/gram_geometry.hpp"
#include "cdgrab/state.hpp"
#include "observation.hpp"
#include "parameter_table.hpp"

namespace cdgrab::torch {

/// Parameters whose gradients stay factors, or live on a device: only inner products are taken of them.
class FactorGeometry final : public GramGeometry {
 public:
  /// A piece for a parameter of this size, in float64 or float32; its number.
  std::size_t add(std::int64_t numel, bool wide);
  /// Its registers go to where its gradients are.
  void move(std::size_t piece, at::Device device);
  /// The block: gradients of some of the pieces, by number; the others are zero.
  void set_block(std::int64_t batch, std::unordered_map<std::size_t, Contribution> gradients);
  /// Seconds in products and in updates so far.
  [[nodiscard]] double measuring() const { return measuring_; }
  [[nodiscard]] double applying() const { return applying_; }

  [[nodiscard]] std::size_t dim() const override;
  void end_block() override;
  void save(State& state) const override;
  void load(const State& state) override;

 protected:
  void measure(std::span<const Register> live, std::span<const Register> centring,
               std::span<double> gram) override;
  void apply(std::span<const Register> live, std::span<const Change> changes) override;

 private:
  struct Piece {
    at::TensorOptions options;
    std::int64_t numel = 0;
    std::vector<Tensor> registers;  ///< flat; undefined: zero
    std::vector<Tensor> spare;      ///< memory of registers that became zero: mapping new pages costs more
  };
  static Tensor zeros(Piece& piece);
  [[nodiscard]] Tensor changed(std::size_t piece, std::span<const Register> live, const Change& change,
                               bool in_place);

  std::vector<Piece> pieces_;
  std::unordered_map<std::size_t, Contribution> gradients_;
  double measuring_ = 0.0;
  double applying_ = 0.0;
};

class GhostGeometry : public CompositeGeometry {
 public:
  GhostGeometry();
  ~GhostGeometry() override;
  GhostGeometry(const GhostGeometry&) = delete;
  GhostGeometry& operator=(const GhostGeometry&) = delete;

  /// Makes what a backward left behind the current block. Gradients may be sketches, always of one length.
  void set_block(Observed&& observed);
  [[nodiscard]] const FactorGeometry& factors() const { return *factors_; }
  void end_block() override;

  void save(State& state) const override;
  /// Into one that has met no parameters yet, it brings their places with it.
  void load(const State& state) override;

 private:
  class RowsPart;

  /// Gives the slots of the table that came after those there are a place: a slot without a part is a piece
  /// of factors_.
  void make_parts();
  GhostGeometry& operator=(GhostGeometry&&) noexcept;

  FactorGeometry* factors_;
  std::vector<std::unique_ptr<RowsPart>> rows_;
  ParameterTable table_;
  std::vector<std::size_t> pieces_;  ///< per slot that has a place: of factors_
};

}  // namespace cdgrab::torch
