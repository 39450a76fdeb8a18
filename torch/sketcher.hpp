// SPDX-License-Identifier: Apache-2.0
// Sketches of per-example gradients, taken of a layer's two factors before any row is formed: kron with
// random maps, pca with maps that are learned (docs/math.md, section 8).
#pragma once

#include <cstdint>
#include <vector>

#include "cdgrab/sketch.hpp"
#include "contribution.hpp"
#include "parameter_table.hpp"

namespace cdgrab::torch {

class Sketcher {
 public:
  /// `units` as make_sketch() has it. `shapes`: what parameters are taken for, in the order in which they are
  /// met; empty: their own shapes. Throws UserError.
  Sketcher(const SketchOptions& options, std::size_t units, std::vector<Shape> shapes, std::uint64_t seed);

  /// Whether it is one that is applied to factors.
  static bool makes(SketchKind kind) { return kind == SketchKind::kKron || kind == SketchKind::kPca; }

  /// A block of these parameters comes, in this epoch. Maps that are learned change with the epoch, and
  /// within one do not.
  void begin_block(std::uint64_t epoch, const std::vector<Met>& parameters);
  /// Whether it forms them before it makes them shorter, as takes less time than projections of all
  /// positions.
  [[nodiscard]] bool forms(const Contribution& gradients) const;
  /// Rows of the sketch's length, in the scale of `gradients`, of a parameter that begin_block() was told of.
  [[nodiscard]] Contribution sketch(const Tensor& parameter, const Contribution& gradients);
  /// The block is over: whether the next one is learned from depends on how many there were.
  void end_block() { ++blocks_; }

  /// The maps that were learned, and the sums that the next ones are made of.
  void save(State& state) const;
  /// Throws StateMismatch, and changes nothing.
  void load(const State& state);

 private:
  /// Of a parameter, read as an m x n matrix. A side that stays as it is has no map.
  struct Maps {
    std::int64_t m = 0;  ///< 0: not met since it was loaded
    std::int64_t n = 0;
    std::int64_t size = 0;       ///< r
    Tensor left, right;          ///< (m, r) and (n, r)
    Tensor left_sum, right_sum;  ///< pca: what the next epoch's are made of
    [[nodiscard]] bool known() const { return left.defined() || right.defined(); }
  };
  struct Projected {
    Tensor left;   ///< (B, T, r) or less
    Tensor right;  ///< the same
    Tensor rows;   ///< (B, r, r): left^T right
  };

  [[nodiscard]] std::int64_t size_for(const KronTensor& tensor) const;
  void meet(std::size_t number, const Tensor& parameter);
  [[nodiscard]] Shape shape_of(std::size_t number, const Tensor& parameter) const;
  void draw(Maps& maps, std::size_t number, const at::TensorOptions& options) const;
  void learn_first(Maps& maps, const Factors& factors) const;
  static void change_epoch(Maps& maps);
  static Projected project(const Maps& maps, const Factors& factors);
  static void learn(Maps& maps, const Factors& factors, const Projected& projected);
  void load_maps(Maps& maps, const State& state, std::size_t number) const;
  Tensor sketch_use(Maps& maps, const Factors& factors) const;
  Tensor sketch_rows(Maps& maps, const Tensor& rows) const;

  [[nodiscard]] bool learns() const { return options_.kind == SketchKind::kPca; }
  [[nodiscard]] bool learns_now() const;

  SketchOptions options_;
  std::size_t units_;
  std::vector<Shape> shapes_;
  std::uint64_t seed_;
  ParameterTable table_;
  std::vector<Maps> maps_;  ///< by number in the table
  std::uint64_t epoch_ = 0;
  std::int64_t blocks_ = 0;  ///< of the epoch so far
};

}  // namespace cdgrab::torch
