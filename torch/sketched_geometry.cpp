// SPDX-License-Identifier: Apache-2.0
#include "sketched_geometry.hpp"

#include <fmt/format.h>

#include <utility>

#include "cdgrab/error.hpp"

namespace cdgrab::torch {

void SketchedGeometry::end_block() {
  GhostGeometry::end_block();
  sketcher_.end_block();
}

void SketchedGeometry::save(State& state) const {
  GhostGeometry::save(state);
  sketcher_.save(state);
}

void SketchedGeometry::load(const State& state) {
  Sketcher loaded = sketcher_;
  loaded.load(state);
  GhostGeometry::load(state);
  sketcher_ = std::move(loaded);
}

Shortening shortening_by(std::function<Sketcher*()> sketcher, std::uint64_t epoch) {
  return {.begin = [=](const std::vector<Met>& met) { sketcher()->begin_block(epoch, met); },
          .forms =
              [=](const Contribution& gradients) {
                const Sketcher* by = sketcher();
                return by != nullptr && by->forms(gradients);
              },
          .shorten =
              [=](const Tensor& parameter, const Contribution& gradients) {
                Sketcher* by = sketcher();
                return by == nullptr ? gradients : by->sketch(parameter, gradients);
              }};
}

Observed sketch_all(Sketcher& sketcher, std::uint64_t epoch, const Observed& whole) {
  const at::NoGradGuard no_grad;
  std::vector<Met> met;
  for (const ParameterGradients& p : whole.parameters) met.push_back({p.parameter, p.name});
  sketcher.begin_block(epoch, met);
  Observed sketched{whole.batch, {}, whole.seconds};
  for (const ParameterGradients& p : whole.parameters)
    sketched.parameters.push_back({p.parameter, sketcher.sketch(p.parameter, p.gradients), p.name, p.rule});
  return sketched;
}

std::vector<Tensor> cut_by_shapes(const std::vector<Tensor>& rows, const std::vector<Shape>& shapes,
                                  const char* where) {
  if (rows.size() != 1 || shapes.size() < 2 || rows.front().dim() != 2) return rows;
  std::vector<Tensor> pieces;
  std::int64_t begin = 0;
  for (const Shape& shape : shapes) {
    std::int64_t numel = 1;
    for (const std::size_t side : shape) numel *= static_cast<std::int64_t>(side);
    if (numel > rows.front().size(1) - begin) break;
    pieces.push_back(rows.front().narrow(1, begin, numel));
    begin += numel;
  }
  if (pieces.size() != shapes.size() || begin != rows.front().size(1))
    throw UserError(where,
                    fmt::format("rows of {} numbers, which are not as many as the shapes given for the "
                                "sketch multiply and add up to; give the shape of every tensor, in the "
                                "row's order",
                                rows.front().size(1)));
  return pieces;
}

}  // namespace cdgrab::torch
