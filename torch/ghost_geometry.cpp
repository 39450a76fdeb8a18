// SPDX-License-Identifier: Apache-2.0
#include "ghost_geometry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cdgrab/dense_geometry.hpp"
#include "cdgrab/error.hpp"

namespace cdgrab::torch {
namespace {

/// Parameters up to this size share one matrix of rows: a copy costs less than a pass of their own.
constexpr std::int64_t kSmall = 4096;

bool wide(const Tensor& tensor) { return tensor.scalar_type() == at::kDouble; }

Tensor flat_copy_on_cpu(const Tensor& tensor) { return tensor.to(at::kCPU).contiguous().reshape({-1}); }

}  // namespace

// ---------------------------------------------------------------------------------------------------------

std::size_t FactorGeometry::add(const Tensor& parameter) {
  Piece piece;
  piece.options = parameter.options().requires_grad(false).dtype(wide(parameter) ? at::kDouble : at::kFloat);
  piece.numel = parameter.numel();
  piece.registers.resize(names().size());
  pieces_.push_back(std::move(piece));
  return pieces_.size() - 1;
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
void FactorGeometry::measure(std::span<const Register> live, std::span<double> gram) {
  const auto rows = static_cast<std::int64_t>(block_size());
  const auto size = rows + static_cast<std::int64_t>(live.size());
  if (pieces_.empty() || size == 0) return;
  const auto options = pieces_.front().options.dtype(at::kDouble);
  const Tensor total = at::zeros({size, size}, options);
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const Piece& piece = pieces_[p];
    const auto found = gradients_.find(p);
    if (found != gradients_.end()) {
      total.slice(0, 0, rows).slice(1, 0, rows).add_(found->second.gram());
      for (std::size_t j = 0; j < live.size(); ++j) {
        if (!piece.registers[live[j]].defined()) continue;
        const auto column = rows + static_cast<std::int64_t>(j);
        total.slice(0, 0, rows).select(1, column).add_(found->second.inner(piece.registers[live[j]]));
      }
    }
    for (std::size_t j = 0; j < live.size(); ++j)
      for (std::size_t i = 0; i <= j; ++i) {
        const Tensor& a = piece.registers[live[i]];
        const Tensor& b = piece.registers[live[j]];
        if (!a.defined() || !b.defined()) continue;
        total.select(0, rows + static_cast<std::int64_t>(i))
            .select(0, rows + static_cast<std::int64_t>(j))
            .add_(at::dot(a, b));
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

Tensor FactorGeometry::changed(std::size_t p, std::span<const Register> live, const Change& change) const {
  const Piece& piece = pieces_[p];
  if (change.weights.empty()) return {};
  Tensor value;
  for (std::size_t j = 0; j < live.size(); ++j) {
    const double weight = change.weights[block_size() + j];
    const Tensor& old = piece.registers[live[j]];
    if (weight == 0.0 || !old.defined()) continue;
    // The register itself, which is what nearly always changes, is added to in place.
    if (live[j] == change.target && weight == 1.0 && !value.defined())
      value = old;
    else
      value = value.defined() ? value + old * weight : old * weight;
  }
  const auto found = gradients_.find(p);
  const bool rows =
      std::any_of(change.weights.begin(), change.weights.begin() + static_cast<std::ptrdiff_t>(block_size()),
                  [](double weight) { return weight != 0.0; });
  if (found == gradients_.end() || !rows) return value;
  if (!value.defined()) value = at::zeros({piece.numel}, piece.options);
  const Tensor weights = at::tensor(at::ArrayRef<double>(change.weights.data(), block_size()), at::kDouble)
                             .to(piece.options.device(), piece.options.dtype().toScalarType());
  found->second.add_to(value, weights);
  return value;
}

void FactorGeometry::apply(std::span<const Register> live, std::span<const Change> changes) {
  const at::NoGradGuard no_grad;
  // changed() adds to a register in place; one that others are made from needs a copy for that.
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
    for (const Change& change : changes) {
      Tensor& own = pieces_[p].registers[change.target];
      const Tensor before = own;
      if (own.defined() && others_need(change.target)) own = own.clone();
      values.push_back(changed(p, live, change));
      own = before;
    }
    for (std::size_t c = 0; c < changes.size(); ++c) pieces_[p].registers[changes[c].target] = values[c];
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
  RowsPart(bool is_wide, std::vector<std::size_t> members, std::vector<std::int64_t> numel)
      : wide_(is_wide), members_(std::move(members)), numel_(std::move(numel)) {}

  std::unique_ptr<Geometry> make() {
    std::int64_t dim = 0;
    for (const std::int64_t n : numel_) dim += n;
    if (wide_) return make_as<double>(static_cast<std::size_t>(dim));
    return make_as<float>(static_cast<std::size_t>(dim));
  }

  void set_block(std::int64_t batch, const std::unordered_map<std::size_t, const Contribution*>& gradients) {
    std::vector<Tensor> parts;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      const auto found = gradients.find(members_[m]);
      const auto dtype = wide_ ? at::kDouble : at::kFloat;
      parts.push_back(found == gradients.end() ? at::zeros({batch, numel_[m]}, dtype)
                                               : found->second->rows().to(dtype));
    }
    rows_ = parts.size() == 1 ? parts[0].contiguous() : at::cat(parts, 1);
    if (wide_)
      double_->set_block(rows_.const_data_ptr<double>(), static_cast<std::size_t>(batch));
    else
      float_->set_block(rows_.const_data_ptr<float>(), static_cast<std::size_t>(batch));
  }

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

  bool wide_;
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

/// Where a parameter lives is decided when it is first met, and stays.
void GhostGeometry::assign_new(const Observed& observed) {
  std::vector<std::size_t> small;
  std::vector<std::int64_t> small_numel;
  bool small_wide = false;
  const auto add_rows = [&](bool is_wide, std::vector<std::size_t> members, std::vector<std::int64_t> numel) {
    rows_.push_back(std::make_unique<RowsPart>(is_wide, std::move(members), std::move(numel)));
    add({fmt::format("rows.{}", rows_.size() - 1), rows_.back()->make()});
  };
  for (const ParameterGradients& p : observed.parameters) {
    const auto [at, fresh] = number_.try_emplace(p.parameter.unsafeGetTensorImpl(), numel_.size());
    if (!fresh) continue;
    numel_.push_back(p.parameter.numel());
    const bool cpu = p.parameter.device().is_cpu();
    if (cpu && p.parameter.numel() <= kSmall) {
      small.push_back(at->second);
      small_numel.push_back(p.parameter.numel());
      small_wide = small_wide || wide(p.parameter);
    } else if (cpu && p.gradients.is_rows()) {
      add_rows(wide(p.parameter), {at->second}, {p.parameter.numel()});
    } else {
      factor_of_[at->second] = factors_->add(p.parameter);
    }
  }
  if (!small.empty()) add_rows(small_wide, small, small_numel);
}

void GhostGeometry::set_block(Observed&& observed) {
  assign_new(observed);
  if (kept_) {
    const State state = *std::exchange(kept_, std::nullopt);
    CompositeGeometry::load(state);
  }
  std::unordered_map<std::size_t, Contribution> factors;
  std::unordered_map<std::size_t, const Contribution*> rows;
  for (const ParameterGradients& p : observed.parameters) {
    const std::size_t number = number_.at(p.parameter.unsafeGetTensorImpl());
    const auto piece = factor_of_.find(number);
    if (piece != factor_of_.end())
      factors.emplace(piece->second, p.gradients);
    else
      rows.emplace(number, &p.gradients);
  }
  for (auto& part : rows_) part->set_block(observed.batch, rows);
  factors_->set_block(observed.batch, std::move(factors));
}

void GhostGeometry::save(State& state) const {
  if (!kept_) return CompositeGeometry::save(state);
  for (const auto& [key, value] : kept_->entries())
    std::visit([&, &key = key](const auto& v) { state.set(key, v); }, value);
}

void GhostGeometry::load(const State& state) {
  if (!numel_.empty()) return CompositeGeometry::load(state);
  State own;
  for (const auto& [key, value] : state.entries())
    if (key.starts_with("factors/") || key.starts_with("rows."))
      std::visit([&, &key = key](const auto& v) { own.set(key, v); }, value);
  kept_ = std::move(own);
}

}  // namespace cdgrab::torch
