// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "cdgrab/gram_geometry.hpp"

namespace cdgrab {

std::size_t GramGeometry::group_size(bool /*differences*/, bool /*root*/) const {
  return std::max<std::size_t>(rows_, 1);
}

void GramGeometry::declare(std::vector<std::string> names) {
  names_ = std::move(names);
  live_.assign(names_.size(), false);
  centring_.assign(names_.size(), false);
}

std::vector<Register> GramGeometry::live() const {
  std::vector<Register> all;
  for (Register r = 0; r < live_.size(); ++r)
    if (live_[r]) all.push_back(r);
  return all;
}

void GramGeometry::set_live(std::vector<bool> live) {
  live_ = std::move(live);
  measured_ = false;
}

void GramGeometry::begin_block(std::size_t rows) {
  rows_ = rows;
  measured_ = false;
}

/// The numbers of this block, when the first of them is asked for.
void GramGeometry::measure_once() {
  if (measured_) return;
  basis_registers_ = live();
  remeasure();
  registers_.assign(names_.size(), std::nullopt);
  changed_.assign(names_.size(), false);
  for (std::size_t j = 0; j < basis_registers_.size(); ++j)
    registers_[basis_registers_[j]] = symbol_of(Operand::reg(basis_registers_[j]));
  measured_ = true;
}

void GramGeometry::remeasure() {
  const std::size_t size = rows_ + basis_registers_.size();
  std::vector<Register> centring;
  std::copy_if(basis_registers_.begin(), basis_registers_.end(), std::back_inserter(centring),
               [this](Register r) { return centring_[r]; });
  std::vector<double> gram(size * size);
  measure(basis_registers_, centring, gram);
  // A row that was not finite stays so, also where the first measure has taken it out.
  for (std::size_t i = 0; measured_ && i < rows_; ++i)
    if (!std::isfinite(gram_[i * size + i])) gram[i * size + i] = gram_[i * size + i];
  gram_ = std::move(gram);
}

/// Whether a vector is made of a register that no vector was made of before; remembers it.
bool GramGeometry::lacks_products(const Symbol& symbol) {
  bool lacks = false;
  for (std::size_t j = 0; j < basis_registers_.size(); ++j) {
    if (symbol.weights[rows_ + j] == 0.0 || centring_[basis_registers_[j]]) continue;
    centring_[basis_registers_[j]] = true;
    lacks = true;
  }
  return lacks;
}

GramGeometry::Symbol GramGeometry::with_products(std::vector<double> weights) const {
  Symbol symbol{std::move(weights), std::vector<double>(rows_ + basis_registers_.size())};
  const std::size_t size = symbol.weights.size();
  for (std::size_t i = 0; i < size; ++i)
    if (symbol.weights[i] != 0.0)
      for (std::size_t j = 0; j < size; ++j) symbol.products[j] += symbol.weights[i] * gram_[i * size + j];
  return symbol;
}

std::size_t GramGeometry::basis_index(const Operand& operand) const {
  if (operand.kind == Operand::Kind::kRow) return operand.index;
  const auto found = std::lower_bound(basis_registers_.begin(), basis_registers_.end(), operand.index);
  return rows_ + static_cast<std::size_t>(found - basis_registers_.begin());
}

/// An element of the basis, or what has become of a register since, times the operand's scale.
GramGeometry::Symbol GramGeometry::symbol_of(const Operand& operand) const {
  const std::size_t size = rows_ + basis_registers_.size();
  Symbol symbol{std::vector<double>(size), std::vector<double>(size)};
  if (operand.kind == Operand::Kind::kRegister && registers_[operand.index]) {
    add(symbol, operand.scale, *registers_[operand.index]);
  } else if (operand.kind == Operand::Kind::kRow || live_[operand.index]) {
    const std::size_t i = basis_index(operand);
    symbol.weights[i] = operand.scale;
    for (std::size_t j = 0; j < size; ++j) symbol.products[j] = operand.scale * gram_[i * size + j];
  }
  return symbol;
}

void GramGeometry::add(Symbol& to, double weight, const Symbol& from) const {
  for (std::size_t j = 0; j < to.weights.size(); ++j) {
    to.weights[j] += weight * from.weights[j];
    to.products[j] += weight * from.products[j];
  }
}

double GramGeometry::product(const Member& x, const Symbol& y) const {
  double total = 0.0;
  for (const std::size_t j : x.nonzero) total += x.symbol.weights[j] * y.products[j];
  return total;
}

void GramGeometry::form(std::span<const Vector> group) {
  measure_once();
  group_.clear();
  bool lacking = false;
  for (const Vector& v : group) {
    Member& member = group_.emplace_back();
    member.symbol = symbol_of(v.first);
    if (v.has_second) add(member.symbol, -1.0, symbol_of(v.second));
    for (std::size_t j = 0; j < member.symbol.weights.size(); ++j)
      if (member.symbol.weights[j] != 0.0) member.nonzero.push_back(j);
    lacking = lacks_products(member.symbol) || lacking;
  }
  if (!lacking) return;
  remeasure();
  for (Member& member : group_) member.symbol = with_products(std::move(member.symbol.weights));
  for (auto& r : registers_)
    if (r) r = with_products(std::move(r->weights));
}

void GramGeometry::products(std::span<const Register> against, Wanted wanted, Products& out) {
  const std::size_t size = group_.size();
  out.inner.assign(size, 0.0);
  for (std::size_t k = 0; k < size; ++k) {
    const auto& r = registers_[against[k]];
    // Against zero it is 0, but not for a vector that is not finite.
    out.inner[k] = r ? product(group_[k], *r) : 0.0 * product(group_[k], group_[k].symbol);
  }
  if (wanted.gram) {
    out.gram.clear();
    for (std::size_t k = 1; k < size; ++k)
      for (std::size_t j = 0; j < k; ++j) out.gram.push_back(product(group_[k], group_[j].symbol));
  }
  if (wanted.norms) {
    out.norms.clear();
    for (const Member& v : group_) out.norms.push_back(product(v, v.symbol));
  }
}

void GramGeometry::set_register(Register target, Symbol value) {
  registers_[target] = std::move(value);
  changed_[target] = true;
}

void GramGeometry::combine(Register target, std::span<const Weighted> weights) {
  Symbol sum = symbol_of(Operand::reg(target));
  for (const Weighted& w : weights) add(sum, w.weight, group_[w.index].symbol);
  set_register(target, std::move(sum));
}

void GramGeometry::blend(Register target, double scale, const Operand& operand) {
  if (rows_ == 0) return blend_registers(target, scale, operand);
  measure_once();
  Symbol value = symbol_of(operand);
  if (scale != 0.0) add(value, scale, symbol_of(Operand::reg(target)));
  set_register(target, std::move(value));
}

/// Between blocks, where no products are needed.
void GramGeometry::blend_registers(Register target, double scale, const Operand& operand) {
  const std::vector<Register> basis = live();
  Change change{target, std::vector<double>(basis.size())};
  for (std::size_t j = 0; j < basis.size(); ++j) {
    if (basis[j] == target) change.weights[j] += scale;
    if (basis[j] == operand.index) change.weights[j] += operand.scale;
  }
  live_[target] = live_[target] || live_[operand.index];
  apply(basis, std::span(&change, 1));
}

void GramGeometry::clear(Register target) {
  if (rows_ > 0) {
    measure_once();
    registers_[target] = std::nullopt;
    changed_[target] = true;
  } else if (live_[target]) {
    const Change change{target, {}};
    apply({}, std::span(&change, 1));
  }
  live_[target] = false;
}

double GramGeometry::norm2(std::size_t row) {
  measure_once();
  return gram_[row * (rows_ + basis_registers_.size()) + row];
}

bool GramGeometry::finite(std::size_t row) { return std::isfinite(norm2(row)); }

/// Makes the registers what their symbols say.
void GramGeometry::settle() {
  if (!measured_) return;
  std::vector<Change> changes;
  for (Register r = 0; r < names_.size(); ++r) {
    if (!changed_[r]) continue;
    live_[r] = registers_[r].has_value();
    changes.push_back({r, live_[r] ? registers_[r]->weights : std::vector<double>()});
  }
  if (!changes.empty()) apply(basis_registers_, changes);
  measured_ = false;
}

void GramGeometry::end_block() {
  settle();
  rows_ = 0;
}

}  // namespace cdgrab
