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

/// Parameters up to this size share one matrix of rows: a copy costs less than a pass of their own.
constexpr std::int64_t kSmall = 4096;
/// With more registers than this (a tree of accumulators) products with each cost more in factors than
/// forming the rows once.
constexpr std::size_t kFewRegisters = 8;

bool wide(const Tensor& tensor) { return tensor.scalar_type() == at::kDouble; }

/// One more than there are line ends.
std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  }
  return lines;
}

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
      of_rows.slice(1, 0, rows).add_(found->second.gram());
      for (const Register r : live)
        if (registers[r].defined()) of_rows.select(1, column(r)).add_(found->second.inner(registers[r]));
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
    wide_ = wide_ || slot.wide;
  }

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

  bool wide_ = false;
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

/// Gives the slots that come after those there are a place.
void GhostGeometry::make_parts(std::vector<Slot> slots) {
  std::vector<std::unique_ptr<RowsPart>> fresh;
  for (Slot& slot : slots) {
    const std::size_t number = slots_.size();
    if (slot.part == kFactors) {
      slot.piece = factors_->add(slot.numel, slot.wide);
    } else {
      const std::size_t part = static_cast<std::size_t>(slot.part) - rows_.size();
      while (fresh.size() <= part) fresh.push_back(std::make_unique<RowsPart>());
      fresh[part]->add(number, slot);
    }
    slots_.push_back(slot);
  }
  for (auto& part : fresh) {
    add({fmt::format("rows.{}", rows_.size()), part->make()});
    rows_.push_back(std::move(part));
  }
}

void GhostGeometry::require_fits(std::size_t number, const ParameterGradients& gradients) const {
  const Slot& slot = slots_[number];
  if (slot.numel == gradients.parameter.numel() && slot.wide == wide(gradients.parameter)) return;
  throw StateMismatch(
      "parameters",
      fmt::format("parameter {} had {} entries in {} when the state was saved, and has {} in {} "
                  "now; load it with the same model and the same selection of parameters",
                  number, slot.numel, slot.wide ? "float64" : "float32", gradients.parameter.numel(),
                  c10::toString(gradients.parameter.scalar_type())));
}

std::optional<std::size_t> GhostGeometry::recall_by_size(
    const ParameterGradients& one, const std::vector<const ParameterGradients*>& unknown) const {
  std::vector<std::size_t> fitting;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (!slots_[i].taken && slots_[i].numel == one.parameter.numel()) fitting.push_back(i);
  if (fitting.empty()) return std::nullopt;
  const auto rivals = std::count_if(unknown.begin(), unknown.end(), [&](const ParameterGradients* other) {
    return other->parameter.numel() == one.parameter.numel();
  });
  if (fitting.size() == 1 && rivals == 1) return fitting.front();
  throw StateMismatch(
      "parameters",
      fmt::format(
          "the state was saved after backwards with different parameters, and {} of {} entries cannot "
          "be told apart; name them from the start of a run (ObserveOptions::parameters)",
          std::max<std::size_t>(fitting.size(), static_cast<std::size_t>(rivals)), one.parameter.numel()));
}

std::vector<std::optional<std::size_t>> GhostGeometry::recall(
    const std::vector<const ParameterGradients*>& unknown) const {
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (!slots_[i].taken) left.push_back(i);
  std::vector<std::optional<std::size_t>> found(unknown.size());
  if (left.empty()) return found;
  const bool named =
      std::all_of(left.begin(), left.end(), [&](std::size_t i) { return !slots_[i].name.empty(); }) &&
      std::all_of(unknown.begin(), unknown.end(), [](const auto* p) { return !p->name.empty(); });
  const bool together = std::all_of(left.begin(), left.end(), [&](std::size_t i) {
    return slots_[i].meeting == slots_[left.front()].meeting;
  });
  const auto has_value = [](const std::optional<std::size_t>& slot) { return slot.has_value(); };
  for (std::size_t k = 0; k < unknown.size(); ++k) {
    if (named) {
      const auto same = std::find_if(left.begin(), left.end(),
                                     [&](std::size_t i) { return slots_[i].name == unknown[k]->name; });
      if (same != left.end()) found[k] = *same;
    } else if (together && left.size() == unknown.size()) {
      found[k] = left[k];
    } else {
      found[k] = recall_by_size(*unknown[k], unknown);
    }
    if (found[k]) require_fits(*found[k], *unknown[k]);
  }
  const auto recalled = static_cast<std::size_t>(std::count_if(found.begin(), found.end(), has_value));
  if (recalled < found.size() && recalled < left.size() && !named)
    throw StateMismatch(
        "parameters",
        fmt::format("the state was saved with {} parameters and this backward has {}, of which {} have their "
                    "sizes; load it with the same model and the same selection of parameters",
                    left.size(), unknown.size(), recalled));
  return found;
}

void GhostGeometry::meet(const Observed& observed) {
  const auto known = [this](const ParameterGradients& p) {
    return number_.contains(p.parameter.unsafeGetTensorImpl());
  };
  if (!met_.empty() && !observed.parameters.empty() &&
      std::none_of(observed.parameters.begin(), observed.parameters.end(), known))
    throw UserError(
        "observe",
        "this loss depends on none of the parameters of the batches before it: if the loop makes new tensors "
        "in every step, give their per-example gradients instead (observe_gradients; step in Python)");
  std::vector<const ParameterGradients*> unknown;
  for (const ParameterGradients& p : observed.parameters)
    if (!known(p)) unknown.push_back(&p);
  if (unknown.empty()) return;
  const auto recalled = recall(unknown);
  std::vector<Slot> fresh;
  auto next_part = static_cast<std::int64_t>(rows_.size());
  std::int64_t small_part = kFactors;
  for (std::size_t k = 0; k < unknown.size(); ++k) {
    const ParameterGradients& p = *unknown[k];
    number_[p.parameter.unsafeGetTensorImpl()] = recalled[k].value_or(slots_.size() + fresh.size());
    met_.push_back(p.parameter);
    if (recalled[k]) {
      slots_[*recalled[k]].taken = true;
      continue;
    }
    Slot& slot = fresh.emplace_back();
    slot.numel = p.parameter.numel();
    slot.wide = wide(p.parameter);
    slot.meeting = meetings_;
    slot.name = p.name;
    slot.taken = true;
    if (!p.parameter.device().is_cpu()) continue;
    if (slot.numel <= kSmall)
      slot.part = small_part = small_part == kFactors ? next_part++ : small_part;
    else if (p.gradients.is_rows() || names().size() > kFewRegisters)
      slot.part = next_part++;
  }
  if (!fresh.empty()) ++meetings_;
  make_parts(std::move(fresh));
}

void GhostGeometry::set_block(Observed&& observed) {
  meet(observed);
  std::unordered_map<std::size_t, Contribution> factors;
  std::unordered_map<std::size_t, const Contribution*> rows;
  for (const ParameterGradients& p : observed.parameters) {
    const std::size_t number = number_.at(p.parameter.unsafeGetTensorImpl());
    if (slots_[number].part != kFactors) {
      rows.emplace(number, &p.gradients);
      continue;
    }
    factors_->move(slots_[number].piece, p.parameter.device());
    factors.emplace(slots_[number].piece, p.gradients);
  }
  for (auto& part : rows_) part->set_block(observed.batch, rows);
  factors_->set_block(observed.batch, std::move(factors));
}

void GhostGeometry::end_block() {
  CompositeGeometry::end_block();
  for (auto& part : rows_) part->drop_block();
}

void GhostGeometry::save(State& state) const {
  std::vector<std::int64_t> numel;
  std::vector<std::int64_t> part;
  std::vector<std::int64_t> meeting;
  std::vector<std::uint8_t> is_wide;
  std::vector<std::string_view> names;
  for (const Slot& slot : slots_) {
    numel.push_back(slot.numel);
    part.push_back(slot.part);
    meeting.push_back(slot.meeting);
    is_wide.push_back(slot.wide ? 1 : 0);
    names.push_back(slot.name);
  }
  state.set("parameters/meeting", std::span<const std::int64_t>(meeting));
  state.set("parameters/names", fmt::format("{}", fmt::join(names, "\n")));
  state.set("parameters/numel", std::span<const std::int64_t>(numel));
  state.set("parameters/part", std::span<const std::int64_t>(part));
  state.set("parameters/wide", std::span<const std::uint8_t>(is_wide));
  CompositeGeometry::save(state);
}

/// Checked against what the state holds before anything is allocated.
std::vector<GhostGeometry::Slot> GhostGeometry::slots_of(const State& state) {
  const Array& array = state.array("parameters/numel");
  const std::size_t count = array.bytes.size() / dtype_size(array.dtype);
  const auto numel = state.elements<std::int64_t>("parameters/numel", count);
  const auto part = state.elements<std::int64_t>("parameters/part", count);
  const auto meeting = state.elements<std::int64_t>("parameters/meeting", count);
  const auto is_wide = state.elements<std::uint8_t>("parameters/wide", count);
  const auto names = split_lines(state.text("parameters/names"));
  if (names.size() != count && count > 0)
    throw StateMismatch("parameters/names", fmt::format("{} names for {} parameters", names.size(), count));
  std::size_t bytes = 0;
  for (const auto& [key, value] : state.entries())
    if (const auto* entry = std::get_if<Array>(&value)) bytes += entry->bytes.size();
  std::vector<Slot> slots(count);
  std::int64_t parts = 0;
  std::size_t left = bytes / sizeof(float);
  for (std::size_t i = 0; i < count; ++i) {
    slots[i] = {numel[i], part[i], is_wide[i] != 0, meeting[i], names[i]};
    if (numel[i] < 0 || static_cast<std::size_t>(numel[i]) > left)
      throw StateMismatch(
          "parameters/numel",
          fmt::format("parameter {} with {} entries, more than the state holds", i, numel[i]));
    left -= static_cast<std::size_t>(numel[i]);
    if (part[i] < kFactors || part[i] > parts)
      throw StateMismatch("parameters/part",
                          fmt::format("part {} for parameter {}; at most {} is possible", part[i], i, parts));
    parts = std::max(parts, part[i] + 1);
  }
  return slots;
}

void GhostGeometry::load(const State& state) {
  std::vector<Slot> slots = slots_of(state);
  if (slots.empty()) {
    for (Register r = 0; r < names().size(); ++r) clear(r);
    return;
  }
  if (slots_.empty()) {
    // A copy of ourselves takes the blow if the rest of the state is no good.
    GhostGeometry loaded;
    loaded.declare(names());
    loaded.make_parts(std::move(slots));
    loaded.CompositeGeometry::load(state);
    *this = std::move(loaded);
    return;
  }
  const bool same =
      std::equal(slots.begin(), slots.end(), slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) {
        return a.numel == b.numel && a.part == b.part && a.wide == b.wide;
      });
  if (!same)
    throw StateMismatch("parameters",
                        "the state was saved with other parameters than those seen here; load it into "
                        "a new sampler of the same model");
  CompositeGeometry::load(state);
}

}  // namespace cdgrab::torch
