// SPDX-License-Identifier: Apache-2.0
#include "ghost_geometry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "cdgrab/dense_geometry.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/stopwatch.hpp"

namespace cdgrab::torch {
namespace {

/// With more registers than this (a tree of accumulators) products with each cost more in factors than
/// forming the rows once.
constexpr std::size_t kFewRegisters = 8;

Tensor flat_copy_on_cpu(const Tensor& tensor) { return tensor.to(at::kCPU).contiguous().reshape({-1}); }

}  // namespace

// ---------------------------------------------------------------------------------------------------------

std::size_t FactorGeometry::add(std::int64_t numel, bool wide) {
  Piece piece;
  piece.options = at::TensorOptions(wide ? at::kDouble : at::kFloat);
  piece.numel = numel;
  piece.registers.resize(names().size());
  pieces_.push_back(std::move(piece));
  return pieces_.size() - 1;
}

void FactorGeometry::move(std::size_t piece, at::Device device) {
  Piece& p = pieces_[piece];
  if (p.options.device() == device) return;
  p.options = p.options.device(device);
  p.spare.clear();
  for (Tensor& r : p.registers)
    if (r.defined()) r = r.to(device);
}

void FactorGeometry::set_block(std::int64_t batch, std::unordered_map<std::size_t, Contribution> gradients) {
  gradients_ = std::move(gradients);
  begin_block(static_cast<std::size_t>(batch));
}

std::size_t FactorGeometry::dim() const {
  std::int64_t total = 0;
  for (const Piece& piece : pieces_) total += piece.numel;
  return static_cast<std::size_t>(total);
}

/// One matrix on the device, one copy to the host.
void FactorGeometry::measure(std::span<const Register> live, std::span<const Register> centring,
                             std::span<double> gram) {
  const at::NoGradGuard no_grad;
  const Stopwatch watch(&measuring_);
  const auto rows = static_cast<std::int64_t>(block_size());
  const auto size = rows + static_cast<std::int64_t>(live.size());
  if (pieces_.empty() || size == 0) return;
  const Tensor total = at::zeros({size, size}, pieces_.front().options.dtype(at::kDouble));
  const Tensor of_rows = total.slice(0, 0, rows);
  const auto column = [&](Register r) {
    return rows + (std::lower_bound(live.begin(), live.end(), r) - live.begin());
  };
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const std::vector<Tensor>& registers = pieces_[p].registers;
    if (const auto found = gradients_.find(p); found != gradients_.end()) {
      std::vector<Tensor> directions;
      for (const Register r : live) directions.push_back(registers[r]);
      found->second.add_products(directions, of_rows);
    }
    for (const Register a : centring)
      for (const Register b : live) {
        if (!registers[a].defined() || !registers[b].defined()) continue;
        const bool both = std::binary_search(centring.begin(), centring.end(), b);
        if (both && b < a) continue;
        total.select(0, column(std::min(a, b)))
            .select(0, column(std::max(a, b)))
            .add_(at::dot(registers[a], registers[b]));
      }
  }
  const Tensor host = total.to(at::kCPU);
  const double* values = host.const_data_ptr<double>();
  for (std::int64_t i = 0; i < size; ++i)
    for (std::int64_t j = 0; j < size; ++j)
      gram[static_cast<std::size_t>(i * size + j)] = values[i <= j ? i * size + j : j * size + i];
  // What is not finite must not reach a register, not even times zero.
  const Tensor keep = host.diagonal().slice(0, 0, rows).isfinite();
  if (keep.all().item<bool>()) return;
  for (auto& [piece, gradients] : gradients_)
    gradients = gradients.masked(keep.to(pieces_[piece].options.device()));
}

Tensor FactorGeometry::zeros(Piece& piece) {
  if (piece.spare.empty()) return at::zeros({piece.numel}, piece.options);
  const Tensor memory = piece.spare.back();
  piece.spare.pop_back();
  return memory.zero_();
}

/// `in_place`: no other register is made from the target, so it may be added to where it is.
Tensor FactorGeometry::changed(std::size_t p, std::span<const Register> live, const Change& change,
                               bool in_place) {
  Piece& piece = pieces_[p];
  if (change.weights.empty()) return {};
  const auto weight_of = [&](std::size_t j) { return change.weights[block_size() + j]; };
  Tensor value;
  for (std::size_t j = 0; j < live.size(); ++j) {
    if (live[j] != change.target || weight_of(j) == 0.0 || !piece.registers[live[j]].defined()) continue;
    value = in_place ? piece.registers[live[j]] : piece.registers[live[j]].clone();
    if (weight_of(j) != 1.0) value.mul_(weight_of(j));
  }
  for (std::size_t j = 0; j < live.size(); ++j) {
    const Tensor& other = piece.registers[live[j]];
    if (live[j] == change.target || weight_of(j) == 0.0 || !other.defined()) continue;
    value = value.defined() ? value.add_(other, weight_of(j)) : other * weight_of(j);
  }
  const auto found = gradients_.find(p);
  const bool rows =
      std::any_of(change.weights.begin(), change.weights.begin() + static_cast<std::ptrdiff_t>(block_size()),
                  [](double weight) { return weight != 0.0; });
  if (found == gradients_.end() || !rows) return value;
  if (!value.defined()) value = zeros(piece);
  const Tensor weights = at::tensor(at::ArrayRef<double>(change.weights.data(), block_size()), at::kDouble)
                             .to(piece.options.device(), piece.options.dtype().toScalarType());
  found->second.add_to(value, weights);
  return value;
}

void FactorGeometry::apply(std::span<const Register> live, std::span<const Change> changes) {
  const at::NoGradGuard no_grad;
  const Stopwatch watch(&applying_);
  const auto others_need = [&](Register r) {
    const auto at = std::find(live.begin(), live.end(), r);
    if (at == live.end()) return false;
    const std::size_t j = block_size() + static_cast<std::size_t>(at - live.begin());
    return std::any_of(changes.begin(), changes.end(), [&](const Change& change) {
      return change.target != r && !change.weights.empty() && change.weights[j] != 0.0;
    });
  };
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    std::vector<Tensor> values;
    for (const Change& change : changes)
      values.push_back(changed(p, live, change, !others_need(change.target)));
    for (std::size_t c = 0; c < changes.size(); ++c) {
      Tensor& own = pieces_[p].registers[changes[c].target];
      if (own.defined() && !values[c].defined()) pieces_[p].spare.push_back(own);
      own = values[c];
    }
  }
}

void FactorGeometry::end_block() {
  GramGeometry::end_block();
  gradients_.clear();
}

void FactorGeometry::save(State& state) const {
  for (std::size_t p = 0; p < pieces_.size(); ++p)
    for (std::size_t r = 0; r < names().size(); ++r) {
      const Piece& piece = pieces_[p];
      const Tensor value = flat_copy_on_cpu(
          piece.registers[r].defined() ? piece.registers[r] : at::zeros({piece.numel}, piece.options));
      const std::string key = fmt::format("{}/{}", p, names()[r]);
      const auto size = static_cast<std::size_t>(piece.numel);
      if (wide(value))
        state.set(key, std::span<const double>(value.const_data_ptr<double>(), size));
      else
        state.set(key, std::span<const float>(value.const_data_ptr<float>(), size));
    }
}

void FactorGeometry::load(const State& state) {
  std::vector<std::vector<Tensor>> loaded(pieces_.size());
  for (std::size_t p = 0; p < pieces_.size(); ++p)
    for (const std::string& name : names()) {
      const std::string key = fmt::format("{}/{}", p, name);
      const auto size = static_cast<std::size_t>(pieces_[p].numel);
      const Tensor value = pieces_[p].options.dtype() == at::kDouble
                               ? at::tensor(state.elements<double>(key, size), at::kDouble)
                               : at::tensor(state.elements<float>(key, size), at::kFloat);
      loaded[p].push_back(value.to(pieces_[p].options.device()));
    }
  for (std::size_t p = 0; p < pieces_.size(); ++p) pieces_[p].registers = std::move(loaded[p]);
  set_live(std::vector<bool>(names().size(), !pieces_.empty()));
}

// ---------------------------------------------------------------------------------------------------------

/// Some parameters as rows in memory, side by side.
class GhostGeometry::RowsPart {
 public:
  void add(std::size_t number, const Slot& slot) {
    members_.push_back(number);
    numel_.push_back(slot.numel);
    dtype_ = slot.wide ? at::kDouble : dtype_;
  }

  std::unique_ptr<Geometry> make() {
    std::int64_t dim = 0;
    for (const std::int64_t n : numel_) dim += n;
    if (dtype_ == at::kDouble) return make_as<double>(static_cast<std::size_t>(dim));
    return make_as<float>(static_cast<std::size_t>(dim));
  }

  void set_block(std::int64_t batch, const std::unordered_map<std::size_t, const Contribution*>& gradients) {
    std::vector<const Contribution*> members;
    for (const std::size_t member : members_) {
      const auto found = gradients.find(member);
      members.push_back(found == gradients.end() ? nullptr : found->second);
    }
    rows_ = side_by_side(batch, members, numel_, dtype_);
    if (dtype_ == at::kDouble)
      double_->set_block(rows_.const_data_ptr<double>(), static_cast<std::size_t>(batch));
    else
      float_->set_block(rows_.const_data_ptr<float>(), static_cast<std::size_t>(batch));
  }
  void drop_block() { rows_ = Tensor(); }

 private:
  template <class T>
  std::unique_ptr<Geometry> make_as(std::size_t dim) {
    auto geometry = std::make_unique<DenseGeometry<T>>(dim);
    if constexpr (std::is_same_v<T, double>)
      double_ = geometry.get();
    else
      float_ = geometry.get();
    return geometry;
  }

  at::ScalarType dtype_ = at::kFloat;
  std::vector<std::size_t> members_;
  std::vector<std::int64_t> numel_;
  Tensor rows_;
  DenseGeometry<float>* float_ = nullptr;
  DenseGeometry<double>* double_ = nullptr;
};

GhostGeometry::GhostGeometry() : CompositeGeometry({}) {
  auto factors = std::make_unique<FactorGeometry>();
  factors_ = factors.get();
  add({"factors", std::move(factors)});
}

GhostGeometry::~GhostGeometry() = default;
GhostGeometry& GhostGeometry::operator=(GhostGeometry&&) noexcept = default;

void GhostGeometry::make_parts() {
  std::vector<std::unique_ptr<RowsPart>> fresh;
  for (std::size_t number = pieces_.size(); number < table_.slots().size(); ++number) {
    const Slot& slot = table_.slots()[number];
    if (slot.part == kNoPart) {
      pieces_.push_back(factors_->add(slot.numel, slot.wide));
      continue;
    }
    const std::size_t part = static_cast<std::size_t>(slot.part) - rows_.size();
    while (fresh.size() <= part) fresh.push_back(std::make_unique<RowsPart>());
    fresh[part]->add(number, slot);
    pieces_.push_back(0);
  }
  for (auto& part : fresh) {
    add({fmt::format("rows.{}", rows_.size()), part->make()});
    rows_.push_back(std::move(part));
  }
}

void GhostGeometry::set_block(Observed&& observed) {
  const auto home = [this](const ParameterGradients& p) {
    if (!p.parameter.device().is_cpu()) return Home::kNone;
    if (is_small(p.gradients.entries())) return Home::kShared;
    return p.gradients.is_rows() || names().size() > kFewRegisters ? Home::kOwn : Home::kNone;
  };
  std::vector<Met> met;
  for (const ParameterGradients& p : observed.parameters)
    met.push_back({p.parameter, p.name, home(p), p.gradients.entries()});
  table_.meet(met);
  make_parts();
  std::unordered_map<std::size_t, Contribution> factors;
  std::unordered_map<std::size_t, const Contribution*> rows;
  for (const ParameterGradients& p : observed.parameters) {
    const std::size_t number = table_.number(p.parameter);
    if (table_.slots()[number].part != kNoPart) {
      rows.emplace(number, &p.gradients);
      continue;
    }
    factors_->move(pieces_[number], p.parameter.device());
    factors.emplace(pieces_[number], p.gradients);
  }
  for (auto& part : rows_) part->set_block(observed.batch, rows);
  factors_->set_block(observed.batch, std::move(factors));
}

void GhostGeometry::end_block() {
  CompositeGeometry::end_block();
  for (auto& part : rows_) part->drop_block();
}

void GhostGeometry::save(State& state) const {
  table_.save(state);
  CompositeGeometry::save(state);
}

void GhostGeometry::load(const State& state) {
  std::size_t bytes = 0;
  for (const auto& [key, value] : state.entries())
    if (const auto* entry = std::get_if<Array>(&value)) bytes += entry->bytes.size();
  ParameterTable table = ParameterTable::load(state, bytes / sizeof(float));
  if (table.slots().empty()) {
    for (Register r = 0; r < names().size(); ++r) clear(r);
    return;
  }
  if (table_.slots().empty()) {
    // A copy of ourselves takes the blow if the rest of the state is no good.
    GhostGeometry loaded;
    loaded.declare(names());
    loaded.table_ = std::move(table);
    loaded.make_parts();
    loaded.CompositeGeometry::load(state);
    *this = std::move(loaded);
    return;
  }
  if (!table.same_places(table_))
    throw StateMismatch("parameters",
                        "the state was saved with other parameters than those seen here; load it into "
                        "a new sampler of the same model");
  CompositeGeometry::load(state);
}

}  // namespace cdgrab::torch
