// SPDX-License-Identifier: Apache-2.0
// The geometry of an observed backward: every parameter is a piece, as rows in memory where forming them
// is cheap, in scalars where it is not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cdgrab/composite_geometry.hpp"
#include "cdgrab/gram_geometry.hpp"
#include "cdgrab/state.hpp"
#include "observation.hpp"

namespace cdgrab::torch {

/// Parameters whose gradients stay factors, or live on a device: only inner products are taken of them.
class FactorGeometry final : public GramGeometry {
 public:
  /// A piece for a parameter like this one; its number.
  std::size_t add(const Tensor& parameter);
  /// The block: gradients of some of the pieces, by number; the others are zero.
  void set_block(std::int64_t batch, std::unordered_map<std::size_t, Contribution> gradients);

  [[nodiscard]] std::size_t dim() const override;
  void end_block() override;
  void save(State& state) const override;
  void load(const State& state) override;

 protected:
  void measure(std::span<const Register> live, std::span<double> gram) override;
  void apply(std::span<const Register> live, std::span<const Change> changes) override;

 private:
  struct Piece {
    at::TensorOptions options;
    std::int64_t numel = 0;
    std::vector<Tensor> registers;  ///< flat; undefined: zero
  };
  [[nodiscard]] Tensor changed(std::size_t piece, std::span<const Register> live, const Change& change) const;

  std::vector<Piece> pieces_;
  std::unordered_map<std::size_t, Contribution> gradients_;
};

class GhostGeometry final : public CompositeGeometry {
 public:
  GhostGeometry();
  ~GhostGeometry() override;

  /// Makes what a backward left behind the current block.
  void set_block(Observed&& observed);

  void save(State& state) const override;
  /// The pieces are known when the first gradients come; until then the state is kept as it is.
  void load(const State& state) override;

 private:
  class RowsPart;

  void assign_new(const Observed& observed);

  FactorGeometry* factors_;
  std::vector<std::unique_ptr<RowsPart>> rows_;
  std::unordered_map<const void*, std::size_t> number_;  ///< of a parameter, as they were first met
  std::vector<std::int64_t> numel_;
  std::unordered_map<std::size_t, std::size_t> factor_of_;  ///< parameter -> piece of factors_
  std::optional<State> kept_;
};

}  // namespace cdgrab::torch
