// SPDX-License-Identifier: Apache-2.0
#include "sliced_ghost_geometry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cdgrab/error.hpp"
#include "held_part.hpp"
#include "wire.hpp"

namespace cdgrab::torch {
namespace {

/// What stands for a part in a message where there is none left.
constexpr std::uint64_t kEnd = ~std::uint64_t{0};
/// How a part travels: a message of a state has rows of which nobody has said how they would.
enum Form : std::uint64_t { kRows, kFactors, kStored };

/// Bytes of gradients that are formed at a time, to be cut and sent.
constexpr std::int64_t kScratchBytes = std::int64_t{32} << 20;
/// Of a vector: more than any model has, and sums stay far from overflow.
constexpr std::size_t kMostEntries = std::size_t{1} << 48;

constexpr double kLargest = std::numeric_limits<float>::max();

bool by_columns(std::int64_t m, std::int64_t n) { return n > m; }

Tensor scaled(const Tensor& rows, const Tensor& scales) {
  return scales.eq(1.0).all().item<bool>() ? rows : rows * scales.to(rows.scalar_type()).unsqueeze(1);
}

/// At least one of them, to be read only: examples that follow one another are not copied.
Contribution some_of(const Contribution& all, const std::vector<std::int64_t>& index) {
  const bool adjacent =
      std::adjacent_find(index.begin(), index.end(),
                         [](std::int64_t one, std::int64_t next) { return next != one + 1; }) == index.end();
  if (adjacent) return all.narrowed(index.front(), index.back() + 1);
  return all.select(at::tensor(index, at::kLong).to(all.options().device()));
}

/// Of all operands of the pairs, first and second in turn.
Tensor scales_of(std::span<const Vector> pairs) {
  std::vector<double> scales;
  for (const Vector& pair : pairs) scales.insert(scales.end(), {pair.first.scale, pair.second.scale});
  return at::tensor(scales, at::kDouble);
}

void save_table(const ParameterTable& table, State& state) {
  table.save(state);
  std::vector<std::int64_t> rows;
  for (const Slot& slot : table.slots()) rows.push_back(slot.rows);
  state.set("parameters/rows", std::span<const std::int64_t>(rows));
}

/// Every parameter has a part.
ParameterTable load_table(const State& state) {
  ParameterTable table = ParameterTable::load(state, kMostEntries);
  for (const Slot& slot : table.slots())
    if (slot.part == kNoPart || slot.rows < 0)
      throw StateMismatch("parameters/part", "a parameter without a part; load a state of many workers");
  return table;
}

}  // namespace

bool travels_as_rows(const Contribution& gradients, std::size_t ranks) {
  if (gradients.is_rows() || gradients.has_rows()) return true;
  if (ranks == 1) return gradients.saves_work_by_rows();
  std::int64_t factors = 0;
  for (const Factors& f : gradients.uses()) {
    const bool columns = by_columns(f.m, f.n);
    const std::int64_t left = f.is_lookup() ? 1 : f.m;
    const std::int64_t whole = columns ? left : f.n;
    const std::int64_t cut = columns ? f.n : left;
    const auto copies = static_cast<std::int64_t>(ranks);
    // A lookup that is cut by rows has every position at one rank.
    factors += f.positions * (f.is_lookup() && !columns ? 1 + f.n : whole * copies + cut);
  }
  return gradients.entries() <= 2 * factors;
}

// ---- parts

Slice Part::slice(std::size_t rank, std::size_t ranks) const {
  return slice_of(static_cast<std::size_t>(std::max(m, n)), rank, ranks);
}

std::int64_t Part::size(std::size_t rank, std::size_t ranks) const {
  return static_cast<std::int64_t>(slice(rank, ranks).size()) * std::min(m, n);
}

Tensor Part::cut(const Tensor& rows, std::size_t rank, std::size_t ranks) const {
  const Slice own = slice(rank, ranks);
  return rows.view({rows.size(0), m, n})
      .slice(by_columns() ? 2 : 1, static_cast<std::int64_t>(own.begin), static_cast<std::int64_t>(own.end))
      .reshape({rows.size(0), -1});
}

void PartList::extend(const ParameterTable& table) {
  parts_.resize(table.parts());
  for (std::size_t number = begins_.size(); number < table.slots().size(); ++number) {
    const Slot& slot = table.slots()[number];
    Part& part = parts_.at(static_cast<std::size_t>(slot.part));
    part.members.push_back(number);
    part.numel.push_back(slot.numel);
    if (slot.wide) part.dtype = at::kDouble;
    const bool matrix = part.members.size() == 1 && slot.rows > 0 && slot.numel % slot.rows == 0;
    part.m = matrix ? slot.rows : part.m * part.n + slot.numel;
    part.n = matrix ? slot.numel / slot.rows : 1;
    begins_.push_back(dim_);
    dim_ += static_cast<std::size_t>(slot.numel);
    wide_ = wide_ || slot.wide;
  }
}

Array PartList::whole(const std::vector<Tensor>& parts) const {
  const at::ScalarType dtype = wide_ ? at::kDouble : at::kFloat;
  const Tensor all = at::zeros({static_cast<std::int64_t>(dim_)}, dtype);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (!parts[p].defined()) continue;
    std::int64_t begin = 0;
    for (std::size_t k = 0; k < parts_[p].members.size(); ++k) {
      const std::int64_t numel = parts_[p].numel[k];
      all.narrow(0, static_cast<std::int64_t>(begins_[parts_[p].members[k]]), numel)
          .copy_(parts[p].narrow(0, begin, numel));
      begin += numel;
    }
  }
  const auto* bytes = static_cast<const std::byte*>(all.const_data_ptr());
  return {wide_ ? DType::kF64 : DType::kF32, {dim_}, {bytes, bytes + all.nbytes()}};
}

std::vector<Tensor> PartList::parts_of(const Array& whole) const {
  const bool numbers = whole.dtype == DType::kF64 || whole.dtype == DType::kF32;
  const std::size_t size = numbers ? whole.bytes.size() / dtype_size(whole.dtype) : 0;
  if (!numbers || (size != dim_ && !std::binary_search(begins_.begin(), begins_.end(), size)))
    throw StateMismatch("SlicedGeometry::load",
                        fmt::format("a vector of {} bytes of {} where one of {} numbers is needed; load a "
                                    "state of the same model",
                                    whole.bytes.size(), dtype_name(whole.dtype), dim_));
  const at::ScalarType dtype = whole.dtype == DType::kF64 ? at::kDouble : at::kFloat;
  Tensor all = at::zeros({static_cast<std::int64_t>(dim_)}, dtype);
  if (!whole.bytes.empty()) std::memcpy(all.mutable_data_ptr(), whole.bytes.data(), whole.bytes.size());
  std::vector<Tensor> parts;
  for (const Part& part : parts_) {
    std::vector<Tensor> members;
    for (std::size_t k = 0; k < part.members.size(); ++k)
      members.push_back(
          all.narrow(0, static_cast<std::int64_t>(begins_[part.members[k]]), part.numel[k]).to(part.dtype));
    parts.push_back(at::cat(members));
  }
  return parts;
}

// ---- the sender

GhostSliceSender::GhostSliceSender(std::size_t ranks) : ranks_(ranks) {}

void GhostSliceSender::meet(const Observed& observed, const ParameterSet& parameters) {
  const auto home = [](const Tensor& p) { return is_small(p.numel()) ? Home::kShared : Home::kOwn; };
  std::vector<Met> met;
  for (const auto& [name, parameter] : parameters.named())
    if (parameter.requires_grad()) met.push_back({parameter, name, home(parameter)});
  const bool all_named = !met.empty();
  for (const ParameterGradients& p : observed.parameters)
    if (!all_named) met.push_back({p.parameter, p.name, home(p.parameter)});
  table_.meet(met);
  parts_.extend(table_);
}

void GhostSliceSender::set_block(Observed&& observed, const ParameterSet& parameters) {
  end_block();  // of one that was refused
  meet(observed, parameters);
  std::unordered_map<std::size_t, const Contribution*> by_number;
  for (const ParameterGradients& p : observed.parameters)
    by_number.emplace(table_.number(p.parameter), &p.gradients);
  for (std::size_t k = 0; k < parts_.parts().size(); ++k) {
    const Part& part = parts_.parts()[k];
    std::vector<const Contribution*> members;
    for (const std::size_t number : part.members) {
      const auto found = by_number.find(number);
      members.push_back(found == by_number.end() ? nullptr : found->second);
    }
    const bool none =
        std::all_of(members.begin(), members.end(), [](const auto* member) { return member == nullptr; });
    if (none || part.dim() == 0) continue;
    if (members.size() == 1 && !members.front()->is_rows())
      block_.insert_or_assign(k, *members.front());
    else
      block_.insert_or_assign(
          k, Contribution::of_rows(side_by_side(observed.batch, members, part.numel, part.dtype)));
  }
  count_ = static_cast<std::size_t>(observed.batch);
}

void GhostSliceSender::end_block() {
  block_.clear();
  magnitudes_.clear();
  norms_.clear();
  count_ = 0;
}

double GhostSliceSender::norm2(std::size_t row) {
  if (norms_.empty()) {
    norms_.assign(count_, 0.0);
    for (const auto& [part, gradients] : block_) {
      const Tensor diagonal = gradients.gram().diagonal().to(at::kCPU, at::kDouble).contiguous();
      for (std::size_t i = 0; i < count_; ++i) norms_[i] += diagonal.const_data_ptr<double>()[i];
    }
  }
  return norms_[row];
}

double GhostSliceSender::magnitude(const Operand& operand) {
  if (operand.kind == Operand::Kind::kRegister) return carries_.at(operand.index).magnitude;
  if (magnitudes_.empty()) {
    Tensor all = at::zeros({static_cast<std::int64_t>(count_)}, at::kDouble);
    for (const auto& [part, rows] : block_) all = at::maximum(all, rows.magnitude().to(at::kCPU));
    magnitudes_.assign(all.const_data_ptr<double>(), all.const_data_ptr<double>() + count_);
  }
  return magnitudes_[operand.index];
}

bool GhostSliceSender::finite(std::size_t row) {
  if (magnitude(Operand::row(row)) <= kLargest) return true;
  const auto parts = row_of(Operand::row(row));
  return std::all_of(parts.begin(), parts.end(), [](const Tensor& part) {
    return !part.defined() || part.isfinite().all().item<bool>();
  });
}

bool GhostSliceSender::finite(const Vector& difference) {
  const auto& [first, second, has_second] = difference;
  if (magnitude(first) * std::abs(first.scale) + magnitude(second) * std::abs(second.scale) <= kLargest)
    return true;
  for (std::size_t part = 0; part < parts_.parts().size(); ++part)
    if (has(part, {&difference, 1}) && !differences(part, {&difference, 1}).isfinite().all().item<bool>())
      return false;
  return true;
}

const GhostSliceSender::Gradients& GhostSliceSender::gradients_of(const Operand& operand) const {
  return operand.kind == Operand::Kind::kRow ? block_ : carries_.at(operand.index).gradients;
}

std::vector<Tensor> GhostSliceSender::row_of(const Operand& operand) const {
  const std::int64_t index =
      operand.kind == Operand::Kind::kRow ? static_cast<std::int64_t>(operand.index) : 0;
  std::vector<Tensor> parts(parts_.parts().size());
  for (const auto& [part, gradients] : gradients_of(operand))
    parts[part] = gradients.select(at::tensor({index}, at::kLong)).rows().to(at::kCPU).view({-1});
  return parts;
}

bool GhostSliceSender::has(std::size_t part, std::span<const Vector> pairs) const {
  return std::any_of(pairs.begin(), pairs.end(), [&](const Vector& pair) {
    return gradients_of(pair.first).contains(part) || gradients_of(pair.second).contains(part);
  });
}

/// Both of every pair, first and second in turn, in one contribution or several, without the operands'
/// scales.
std::vector<Contribution> GhostSliceSender::examples(std::size_t part, std::span<const Vector> pairs) const {
  const Part& of = parts_.parts()[part];
  std::vector<Contribution> all;
  std::vector<std::int64_t> rows;
  const auto add = [&](const Gradients& gradients, const std::vector<std::int64_t>& index) {
    const auto found = gradients.find(part);
    if (found == gradients.end())
      all.push_back(
          Contribution::of_rows(at::zeros({static_cast<std::int64_t>(index.size()), of.dim()}, of.dtype)));
    else
      all.push_back(some_of(found->second, index));
  };
  const auto flush = [&] {
    if (!rows.empty()) add(block_, std::exchange(rows, {}));
  };
  for (const Vector& pair : pairs)
    for (const Operand& operand : {pair.first, pair.second}) {
      if (operand.kind == Operand::Kind::kRow) {
        rows.push_back(static_cast<std::int64_t>(operand.index));
        continue;
      }
      flush();
      add(carries_.at(operand.index).gradients, {0});
    }
  flush();
  return all;
}

/// All as one, with their scales in the factor that is cut; nothing if they are to travel as rows.
std::optional<Contribution> GhostSliceSender::as_factors(std::size_t part, std::span<const Vector> pairs) {
  const Part& of = parts_.parts()[part];
  for (const Vector& pair : pairs)
    for (const Operand& operand : {pair.first, pair.second}) {
      const auto found = gradients_of(operand).find(part);
      if (found == gradients_of(operand).end() || travels_as_rows(found->second, ranks_)) return std::nullopt;
      // Where a product in float32 might overflow, those of rows are taken in float64.
      const double largest = magnitude(operand) * std::abs(operand.scale);
      if (!(largest * largest * static_cast<double>(of.dim()) < kLargest / 16)) return std::nullopt;
    }
  const auto all = examples(part, pairs);
  for (const Contribution& each : all)
    for (const Factors& f : each.uses())
      if (f.m != of.m || f.n != of.n || !each.alike(all.front())) return std::nullopt;
  return Contribution::cat(all);
}

Tensor GhostSliceSender::differences(std::size_t part, std::span<const Vector> pairs) const {
  std::vector<Tensor> rows;
  for (const Contribution& each : examples(part, pairs))
    rows.push_back(each.rows().to(at::kCPU, parts_.parts()[part].dtype));
  return differences_of_pairs(scaled(rows.size() == 1 ? rows.front() : at::cat(rows), scales_of(pairs)));
}

/// For differences of these parts, at once.
void GhostSliceSender::make_room(const std::vector<std::size_t>& parts, std::size_t count,
                                 std::span<Bytes> out) const {
  for (std::size_t r = 0; r < ranks_; ++r) {
    std::size_t bytes = out[r].size();
    for (const std::size_t part : parts) {
      const Part& of = parts_.parts()[part];
      bytes += 2 * sizeof(std::uint64_t) +
               count * static_cast<std::size_t>(of.size(r, ranks_)) * c10::elementSize(of.dtype);
    }
    bytes += sizeof(kEnd);
    if (bytes > out[r].capacity()) out[r].reserve(std::max(bytes, 2 * out[r].capacity()));
  }
}

void GhostSliceSender::pack_rows(std::size_t part, std::span<const Vector> pairs,
                                 std::span<Bytes> out) const {
  const Part& of = parts_.parts()[part];
  for (std::size_t r = 0; r < ranks_; ++r) {
    Writer to(out[r]);
    to.number(part);
    to.number(kRows);
  }
  const auto bytes_each = 2 * of.dim() * static_cast<std::int64_t>(c10::elementSize(of.dtype));
  const auto step = static_cast<std::size_t>(std::max<std::int64_t>(1, kScratchBytes / bytes_each));
  for (std::size_t begin = 0; begin < pairs.size(); begin += step) {
    const Tensor rows = differences(part, pairs.subspan(begin, std::min(step, pairs.size() - begin)));
    for (std::size_t r = 0; r < ranks_; ++r) Writer(out[r]).tensor(of.cut(rows, r, ranks_));
  }
}

void GhostSliceSender::pack_factors(std::size_t part, const Contribution& examples,
                                    std::span<Bytes> out) const {
  const Part& of = parts_.parts()[part];
  for (std::size_t r = 0; r < ranks_; ++r) {
    Writer to(out[r]);
    to.number(part);
    to.number(kFactors);
    if (of.size(r, ranks_) == 0) continue;
    to.number(examples.uses().size());
    const Slice slice = of.slice(r, ranks_);
    const auto begin = static_cast<std::int64_t>(slice.begin);
    const auto end = static_cast<std::int64_t>(slice.end);
    for (const Factors& use : examples.uses()) {
      const Factors own = of.by_columns() ? use.columns(begin, end) : use.rows(begin, end);
      to.number(own.is_lookup() ? 1 : 0);
      to.number(static_cast<std::uint64_t>(own.positions));
      to.tensor(own.is_lookup() ? own.indices.to(at::kCPU, at::kInt) : own.left.to(at::kCPU));
      to.tensor(own.right.to(at::kCPU));
    }
  }
}

std::size_t GhostSliceSender::pack(std::span<const Vector> differences, std::span<Bytes> out) {
  const at::NoGradGuard no_grad;
  const auto stop = std::find_if(differences.begin(), differences.end(),
                                 [this](const Vector& difference) { return !finite(difference); });
  const auto pairs = differences.first(static_cast<std::size_t>(stop - differences.begin()));
  if (pairs.empty() && told_ == table_.slots().size()) return 0;
  for (Bytes& bytes : out) {
    Writer to(bytes);
    to.number(pairs.size());
    to.number(told_);
    to.number(table_.slots().size());
    for (std::size_t k = told_; k < table_.slots().size(); ++k) {
      const Slot& slot = table_.slots()[k];
      to.number(static_cast<std::uint64_t>(slot.numel));
      to.number(static_cast<std::uint64_t>(slot.rows));
      to.number(static_cast<std::uint64_t>(slot.part));
      to.number(static_cast<std::uint64_t>(slot.meeting));
      to.number(slot.wide ? 1 : 0);
      to.text(slot.name);
    }
  }
  std::vector<std::size_t> as_rows;
  for (std::size_t part = 0; part < parts_.parts().size(); ++part) {
    if (!has(part, pairs)) continue;
    if (auto factors = as_factors(part, pairs)) {
      factors->fold_scales(scales_of(pairs), !parts_.parts()[part].by_columns());
      pack_factors(part, *factors, out);
    } else {
      as_rows.push_back(part);
    }
  }
  make_room(as_rows, pairs.size(), out);
  for (const std::size_t part : as_rows) pack_rows(part, pairs, out);
  for (Bytes& bytes : out) Writer(bytes).number(kEnd);
  told_ = table_.slots().size();
  return pairs.size();
}

void GhostSliceSender::keep(Register carry, const Operand& row) {
  const at::NoGradGuard no_grad;
  Gradients kept;
  const std::int64_t index = row.kind == Operand::Kind::kRow ? static_cast<std::int64_t>(row.index) : 0;
  for (const auto& [part, gradients] : gradients_of(row)) {
    Contribution one = gradients.select(at::tensor({index}, at::kLong).to(gradients.scales().device()));
    one.scale(row.scale);
    kept.emplace(part, std::move(one));
  }
  carries_[carry] = {std::move(kept), magnitude(row) * std::abs(row.scale)};
}

Array GhostSliceSender::carry(Register carry) const { return parts_.whole(row_of(Operand::reg(carry))); }

void GhostSliceSender::set_carry(Register carry, const Array& whole) {
  Carry kept;
  const auto parts = parts_.parts_of(whole);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].numel() == 0) continue;
    const auto row = Contribution::of_rows(parts[part].unsqueeze(0));
    kept.magnitude = std::max(kept.magnitude, row.magnitude().item<double>());
    kept.gradients.emplace(part, row);
  }
  carries_[carry] = std::move(kept);
}

void GhostSliceSender::save(State& state) const { save_table(table_, state); }

void GhostSliceSender::load(const State& state) {
  table_.extend(load_table(state));
  parts_.extend(table_);
  told_ = 0;
  end_block();
}

// ---- the holder

GhostSliceHolder::GhostSliceHolder(std::size_t rank, std::size_t ranks) : rank_(rank), ranks_(ranks) {}
GhostSliceHolder::~GhostSliceHolder() = default;

void GhostSliceHolder::extend_parts() {
  parts_.extend(table_);
  kinds_.resize(parts_.parts().size(), Kind::kUnknown);
  held_.resize(parts_.parts().size());
}

/// Of parameters that the sender has met: the same ones, in the same order, on all ranks.
void GhostSliceHolder::hear(Reader& from) {
  const std::uint64_t first = from.number();
  const std::uint64_t count = from.number();
  for (std::uint64_t k = first; k < count; ++k) {
    Slot slot;
    slot.numel = static_cast<std::int64_t>(from.number());
    slot.rows = static_cast<std::int64_t>(from.number());
    slot.part = static_cast<std::int64_t>(from.number());
    slot.meeting = static_cast<std::int64_t>(from.number());
    slot.wide = from.number() != 0;
    slot.name = from.text();
    if (k == table_.slots().size()) {
      table_.append(std::move(slot));
      continue;
    }
    const Slot& known = table_.slots()[k];
    if (known.numel == slot.numel && known.part == slot.part && known.wide == slot.wide &&
        known.name == slot.name)
      continue;
    throw UserError(
        "observe",
        fmt::format("parameter {} is '{}' with {} entries on one rank and '{}' with {} on another; all ranks "
                    "are to observe the same model, and where batches depend on different parameters these "
                    "are to be named from the start (ObserveOptions::parameters)",
                    k, known.name, known.numel, slot.name, slot.numel));
  }
  extend_parts();
}

HeldPart* GhostSliceHolder::part(std::size_t number, Kind kind) {
  const bool turn = kinds_[number] == Kind::kUnknown && kind == Kind::kFactors && held_[number] != nullptr;
  if (kinds_[number] == Kind::kUnknown) kinds_[number] = kind;
  if (turn) turn_to_factors(number);
  if (held_[number] != nullptr) return held_[number].get();
  const Part& part = parts_.parts()[number];
  const std::int64_t size = part.size(rank_, ranks_);
  if (size == 0) return nullptr;
  held_[number] = kinds_[number] == Kind::kFactors ? make_held_factors(size, part.dtype)
                                                   : make_held_rows(size, part.dtype);
  return held_[number].get();
}

/// What a state brought as rows is held beside the factors that come.
void GhostSliceHolder::turn_to_factors(std::size_t number) {
  const auto before = std::exchange(held_[number], nullptr);
  HeldPart& after = *part(number, Kind::kFactors);
  after.set_accumulator(before->accumulator());
  next_in_part_[number] = 0;
  for (Parcel& parcel : parcels_) {
    const auto first = parcel.firsts.find(number);
    if (first == parcel.firsts.end()) continue;
    if (parcel.dropped == parcel.count) {
      parcel.firsts.erase(first);
      continue;
    }
    const Tensor row = before->held(first->second);
    after.hold_rows(bytes_of(row), 1);
    first->second = next_in_part_[number]++;
  }
}

std::size_t GhostSliceHolder::hold_message(Reader& from) {
  const std::size_t count = from.number();
  hear(from);
  Parcel parcel{next_, count, 0, {}};
  for (std::uint64_t number = from.number(); number != kEnd; number = from.number()) {
    const Part& of = parts_.parts().at(number);
    const auto form = static_cast<Form>(from.number());
    const std::int64_t size = of.size(rank_, ranks_);
    HeldPart* to = part(number, form == kRows      ? Kind::kRows
                                : form == kFactors ? Kind::kFactors
                                                   : Kind::kUnknown);
    if (to == nullptr) continue;
    parcel.firsts.emplace(number, next_in_part_[number]);
    next_in_part_[number] += count;
    if (form != kFactors)
      to->hold_rows(from.bytes(count * static_cast<std::size_t>(size) * c10::elementSize(of.dtype)), count);
    else
      to->hold_factors(read_factors(from, of, count));
  }
  if (count > 0) parcels_.push_back(std::move(parcel));
  next_ += count;
  return count;
}

Contribution GhostSliceHolder::read_factors(Reader& from, const Part& of, std::size_t count) const {
  const auto length = static_cast<std::int64_t>(of.slice(rank_, ranks_).size());
  const std::int64_t m = of.by_columns() ? of.m : length;
  const std::int64_t n = of.by_columns() ? length : of.n;
  const auto batch = static_cast<std::int64_t>(2 * count);
  const std::uint64_t uses = from.number();
  std::optional<Contribution> all;
  for (std::uint64_t k = 0; k < uses; ++k) {
    const bool lookup = from.number() != 0;
    const auto positions = static_cast<std::int64_t>(from.number());
    const Tensor left = lookup ? from.tensor({batch, positions}, at::kInt).to(at::kLong)
                               : from.tensor({batch, positions, m}, of.dtype);
    const Tensor right = from.tensor({batch, positions, n}, of.dtype);
    auto use = Contribution::of_factors(lookup ? Factors::of_lookup(left, right, m)
                                               : Factors::of_matrix(left, right));
    if (all)
      all->add(std::move(use));
    else
      all = std::move(use);
  }
  return std::move(all).value();
}

void GhostSliceHolder::hold(Bytes packed, std::size_t count) {
  const at::NoGradGuard no_grad;
  Reader from(packed);
  std::size_t held = 0;
  while (!from.done()) held += hold_message(from);
  if (held != count)
    throw InvariantError("SliceHolder::hold", fmt::format("{} pairs in messages of {}", held, count));
}

/// As for rows in memory if there are many of these; the Gram matrix of factors is cheap, and what costs is
/// to read their accumulator.
std::size_t GhostSliceHolder::chunk() const {
  std::int64_t rows = 0;
  bool factors = false;
  for (std::size_t k = 0; k < kinds_.size(); ++k) {
    if (kinds_[k] == Kind::kFactors)
      factors = true;
    else
      rows += parts_.parts()[k].dim();
  }
  if (rows / static_cast<std::int64_t>(ranks_) > 4096) return 8;
  return factors ? 32 : 16;
}

std::size_t GhostSliceHolder::held_bytes() const {
  std::size_t bytes = 0;
  for (const auto& part : held_)
    if (part != nullptr) bytes += part->held_bytes();
  return bytes;
}

std::size_t GhostSliceHolder::place_of(std::uint64_t number) const {
  const auto after = std::upper_bound(parcels_.begin(), parcels_.end(), number,
                                      [](std::uint64_t n, const Parcel& p) { return n < p.first; });
  return static_cast<std::size_t>(after - parcels_.begin()) - 1;
}

GhostSliceHolder::Found GhostSliceHolder::find(std::size_t part,
                                               std::span<const std::uint64_t> numbers) const {
  Found found;
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    const Parcel& parcel = parcels_[place_of(numbers[k])];
    const auto first = parcel.firsts.find(part);
    if (first == parcel.firsts.end()) continue;
    found.at.push_back(k);
    found.numbers.push_back(first->second + numbers[k] - parcel.first);
  }
  return found;
}

void GhostSliceHolder::products(std::span<const std::uint64_t> numbers, Wanted wanted, Products& out) {
  const std::size_t count = numbers.size();
  out.inner.assign(count, 0.0);
  out.gram.assign(wanted.gram ? count * (count - 1) / 2 : 0, 0.0);
  out.norms.assign(wanted.norms ? count : 0, 0.0);
  Products of_part;
  for (std::size_t part = 0; part < held_.size(); ++part) {
    const Found found = find(part, numbers);
    if (found.at.empty()) continue;
    held_[part]->products(found.numbers, wanted, of_part);
    const double* gram = of_part.gram.data();
    for (std::size_t k = 0; k < found.at.size(); ++k) {
      out.inner[found.at[k]] += of_part.inner[k];
      if (wanted.norms) out.norms[found.at[k]] += of_part.norms[k];
      if (!wanted.gram) continue;
      double* row = out.gram.data() + (found.at[k] * (found.at[k] + 1) / 2 - found.at[k]);
      for (std::size_t j = 0; j < k; ++j) row[found.at[j]] += *gram++;
    }
  }
}

void GhostSliceHolder::combine(std::span<const std::uint64_t> numbers, std::span<const int> signs) {
  for (std::size_t part = 0; part < held_.size(); ++part) {
    const Found found = find(part, numbers);
    if (found.at.empty()) continue;
    std::vector<int> own;
    for (const std::size_t k : found.at) own.push_back(signs[k]);
    held_[part]->combine(found.numbers, own);
  }
}

std::vector<Bytes> GhostSliceHolder::drop(std::span<const std::uint64_t> numbers) {
  for (std::size_t part = 0; part < held_.size(); ++part)
    if (held_[part] != nullptr) held_[part]->drop(find(part, numbers).numbers);
  for (const std::uint64_t number : numbers) ++parcels_[place_of(number)].dropped;
  while (!parcels_.empty() && parcels_.front().dropped == parcels_.front().count) parcels_.pop_front();
  return {};
}

void GhostSliceHolder::clear() {
  for (const auto& part : held_)
    if (part != nullptr) part->clear();
  next_in_part_.clear();
  parcels_.clear();
  next_ = 0;
}

// ---- states

/// As if they were slices of one pair, so that hold() takes it.
Bytes GhostSliceHolder::message_of(const std::vector<Tensor>& slices) const {
  Bytes bytes;
  Writer to(bytes);
  to.number(1);
  to.number(0);
  to.number(0);
  for (std::size_t part = 0; part < slices.size(); ++part) {
    if (!slices[part].defined()) continue;
    to.number(part);
    to.number(kStored);
    to.tensor(slices[part]);
  }
  to.number(kEnd);
  return bytes;
}

std::vector<Tensor> GhostSliceHolder::slices_of(const Bytes& message, std::size_t rank) const {
  Reader from(message);
  std::vector<Tensor> slices(parts_.parts().size());
  const bool one = from.number() == 1 && from.number() == 0 && from.number() == 0;
  for (std::uint64_t number = one ? from.number() : kEnd; number != kEnd; number = from.number()) {
    if (number >= slices.size() || from.number() != kStored)
      throw StateMismatch("SliceHolder",
                          fmt::format("a slice of part {}, and {} are known here; load a state of the same "
                                      "model",
                                      number, slices.size()));
    const Part& part = parts_.parts()[number];
    slices[number] = from.tensor({part.size(rank, ranks_)}, part.dtype);
  }
  if (one && from.done()) return slices;
  throw StateMismatch("SliceHolder",
                      fmt::format("{} bytes that are no slices of one vector; load a state of the same model",
                                  message.size()));
}

Bytes GhostSliceHolder::accumulator() const {
  std::vector<Tensor> slices(held_.size());
  for (std::size_t part = 0; part < held_.size(); ++part)
    if (held_[part] != nullptr) slices[part] = held_[part]->accumulator();
  return message_of(slices);
}

void GhostSliceHolder::set_accumulator(Bytes part_bytes) {
  const auto slices = slices_of(part_bytes, rank_);
  for (std::size_t k = 0; k < slices.size(); ++k)
    if (slices[k].defined()) part(k, Kind::kUnknown)->set_accumulator(slices[k]);
}

Bytes GhostSliceHolder::held(std::uint64_t number) const {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> slices(held_.size());
  for (std::size_t part = 0; part < held_.size(); ++part) {
    const Found found = find(part, {&number, 1});
    if (!found.numbers.empty()) slices[part] = held_[part]->held(found.numbers.front());
  }
  return message_of(slices);
}

Array GhostSliceHolder::join(std::span<const Bytes> parts) const {
  std::vector<std::vector<Tensor>> by_rank;
  for (std::size_t r = 0; r < parts.size(); ++r) by_rank.push_back(slices_of(parts[r], r));
  std::vector<Tensor> whole(parts_.parts().size());
  for (std::size_t k = 0; k < whole.size(); ++k) {
    const Part& part = parts_.parts()[k];
    std::vector<Tensor> slices;
    for (std::size_t r = 0; r < by_rank.size(); ++r) {
      const Tensor& own = by_rank[r][k];
      const Tensor values = own.defined() ? own : at::zeros({part.size(r, ranks_)}, part.dtype);
      const auto length = static_cast<std::int64_t>(part.slice(r, ranks_).size());
      slices.push_back(part.by_columns() ? values.view({part.m, length}) : values.view({length, part.n}));
    }
    whole[k] = at::cat(slices, part.by_columns() ? 1 : 0).reshape({-1});
  }
  return parts_.whole(whole);
}

Bytes GhostSliceHolder::cut(const Array& whole) const {
  auto slices = parts_.parts_of(whole);
  for (std::size_t k = 0; k < slices.size(); ++k) {
    const Part& part = parts_.parts()[k];
    slices[k] = part.size(rank_, ranks_) == 0 ? Tensor() : part.cut(slices[k].unsqueeze(0), rank_, ranks_);
  }
  return message_of(slices);
}

void GhostSliceHolder::save(State& state) const { save_table(table_, state); }

void GhostSliceHolder::load(const State& state) {
  table_.extend(load_table(state));
  extend_parts();
}

}  // namespace cdgrab::torch
