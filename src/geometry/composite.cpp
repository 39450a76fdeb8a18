// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <variant>

#include "cdgrab/composite_geometry.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab {
namespace {

void add_to(std::vector<double>& total, const std::vector<double>& part) {
  for (std::size_t i = 0; i < total.size(); ++i) total[i] += part[i];
}

}  // namespace

CompositeGeometry::CompositeGeometry(std::vector<Part> parts) : parts_(std::move(parts)) {}

void CompositeGeometry::add(Part part) {
  part.geometry->declare(names_);
  parts_.push_back(std::move(part));
}

std::size_t CompositeGeometry::dim() const {
  std::size_t total = 0;
  for (const Part& part : parts_) total += part.geometry->dim();
  return total;
}

std::size_t CompositeGeometry::block_size() const { return parts_.front().geometry->block_size(); }

std::size_t CompositeGeometry::group_size(bool differences, bool root) const {
  std::size_t smallest = parts_.front().geometry->group_size(differences, root);
  for (const Part& part : parts_) smallest = std::min(smallest, part.geometry->group_size(differences, root));
  return smallest;
}

void CompositeGeometry::declare(std::vector<std::string> names) {
  names_ = std::move(names);
  for (Part& part : parts_) part.geometry->declare(names_);
}

/// Scalars of vectors without coordinates would be kept for nothing.
void CompositeGeometry::form(std::span<const Vector> group) {
  forming_.clear();
  for (const Part& part : parts_)
    if (part.geometry->dim() > 0) forming_.push_back(part.geometry.get());
  if (forming_.empty()) forming_.push_back(parts_.front().geometry.get());
  for (Geometry* each : forming_) each->form(group);
}

void CompositeGeometry::products(std::span<const Register> against, Wanted wanted, Products& out) {
  forming_.front()->products(against, wanted, out);
  for (std::size_t k = 1; k < forming_.size(); ++k) {
    forming_[k]->products(against, wanted, of_part_);
    add_to(out.inner, of_part_.inner);
    if (wanted.gram) add_to(out.gram, of_part_.gram);
    if (wanted.norms) add_to(out.norms, of_part_.norms);
  }
}

void CompositeGeometry::combine(Register target, std::span<const Weighted> weights) {
  for (Geometry* each : forming_) each->combine(target, weights);
}

void CompositeGeometry::blend(Register target, double scale, const Operand& operand) {
  for (Part& part : parts_) part.geometry->blend(target, scale, operand);
}

void CompositeGeometry::clear(Register target) {
  for (Part& part : parts_) part.geometry->clear(target);
}

double CompositeGeometry::norm2(std::size_t row) {
  double total = 0.0;
  for (Part& part : parts_) total += part.geometry->norm2(row);
  return total;
}

bool CompositeGeometry::finite(std::size_t row) {
  return std::all_of(parts_.begin(), parts_.end(), [row](Part& part) { return part.geometry->finite(row); });
}

void CompositeGeometry::end_block() {
  for (Part& part : parts_) part.geometry->end_block();
}

void CompositeGeometry::save(State& state) const {
  for (const Part& part : parts_) {
    State inner;
    part.geometry->save(inner);
    for (const auto& [key, value] : inner.entries())
      std::visit([&, &key = key](const auto& v) { state.set(part.name + "/" + key, v); }, value);
  }
}

/// Each part takes its state back whole or not at all; so that all do, the parts before one that
/// refuses get back what they had.
void CompositeGeometry::load(const State& state) {
  std::vector<State> before(parts_.size());
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    parts_[p].geometry->save(before[p]);
    const std::string prefix = parts_[p].name + "/";
    State inner;
    for (const auto& [key, value] : state.entries())
      if (key.starts_with(prefix))
        std::visit([&, &key = key](const auto& v) { inner.set(key.substr(prefix.size()), v); }, value);
    try {
      parts_[p].geometry->load(inner);
    } catch (...) {
      for (std::size_t q = 0; q < p; ++q) parts_[q].geometry->load(before[q]);
      throw;
    }
  }
}

}  // namespace cdgrab
