// SPDX-License-Identifier: Apache-2.0
// A ghost geometry that holds sketches: gradients are shortened as they are read, and rows of the sketch's
// length are all that is kept.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "ghost_geometry.hpp"
#include "sketcher.hpp"

namespace cdgrab::torch {

class SketchedGeometry final : public GhostGeometry {
 public:
  explicit SketchedGeometry(Sketcher sketcher) : sketcher_(std::move(sketcher)) {}

  [[nodiscard]] Sketcher& sketcher() { return sketcher_; }
  void end_block() override;

  /// With the maps that were learned.
  void save(State& state) const override;
  void load(const State& state) override;

 private:
  Sketcher sketcher_;
};

/// Gradients of a backward in this epoch are to be sketched as they are read; by nobody where `sketcher`
/// gives null, which it may once the backward has begun.
Shortening shortening_by(std::function<Sketcher*()> sketcher, std::uint64_t epoch);
/// What a backward left behind in full, sketched.
Observed sketch_all(Sketcher& sketcher, std::uint64_t epoch, const Observed& whole);
/// A row for all parameters, cut into tensors of these shapes; other tensors are left as they are. Throws
/// UserError.
std::vector<Tensor> cut_by_shapes(const std::vector<Tensor>& rows, const std::vector<Shape>& shapes,
                                  const char* where);

}  // namespace cdgrab::torch
