// SPDX-License-Identifier: Apache-2.0
#include "parameter_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "cdgrab/error.hpp"

namespace cdgrab::torch {
namespace {

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

std::int64_t rows_of(const Tensor& parameter) {
  for (const std::int64_t size : parameter.sizes())
    if (size != 1) return size;
  return 1;
}

}  // namespace

void ParameterTable::append(Slot slot) {
  meetings_ = std::max(meetings_, slot.meeting + 1);
  parts_ = std::max(parts_, slot.part + 1);
  slots_.push_back(std::move(slot));
}

void ParameterTable::require_fits(std::size_t number, const Met& met) const {
  const Slot& slot = slots_[number];
  if (slot.numel == met.numbers() && slot.wide == wide(met.parameter)) return;
  throw StateMismatch(
      "parameters",
      fmt::format("parameter {} had {} entries in {} when the state was saved, and has {} in {} "
                  "now; load it with the same model and the same selection of parameters",
                  number, slot.numel, slot.wide ? "float64" : "float32", met.numbers(),
                  c10::toString(met.parameter.scalar_type())));
}

std::optional<std::size_t> ParameterTable::recall_by_size(const Met& one,
                                                          const std::vector<const Met*>& unknown) const {
  std::vector<std::size_t> fitting;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (!slots_[i].taken && slots_[i].numel == one.numbers()) fitting.push_back(i);
  if (fitting.empty()) return std::nullopt;
  const auto rivals = std::count_if(unknown.begin(), unknown.end(),
                                    [&](const Met* other) { return other->numbers() == one.numbers(); });
  if (fitting.size() == 1 && rivals == 1) return fitting.front();
  throw StateMismatch(
      "parameters",
      fmt::format(
          "the state was saved after backwards with different parameters, and {} of {} entries cannot "
          "be told apart; name them from the start of a run (ObserveOptions::parameters)",
          std::max<std::size_t>(fitting.size(), static_cast<std::size_t>(rivals)), one.numbers()));
}

std::vector<std::optional<std::size_t>> ParameterTable::recall(const std::vector<const Met*>& unknown) const {
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (!slots_[i].taken) left.push_back(i);
  std::vector<std::optional<std::size_t>> found(unknown.size());
  if (left.empty()) return found;
  const bool named =
      std::all_of(left.begin(), left.end(), [&](std::size_t i) { return !slots_[i].name.empty(); }) &&
      std::all_of(unknown.begin(), unknown.end(), [](const Met* p) { return !p->name.empty(); });
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

void ParameterTable::meet(const std::vector<Met>& parameters) {
  if (!met_.empty() && !parameters.empty() &&
      std::none_of(parameters.begin(), parameters.end(), [this](const Met& met) { return known(met); }))
    throw UserError(
        "observe",
        "this loss depends on none of the parameters of the batches before it: if the loop makes new tensors "
        "in every step, give their per-example gradients instead (observe_gradients; step in Python)");
  std::vector<const Met*> unknown;
  for (const Met& met : parameters)
    if (!known(met)) unknown.push_back(&met);
  if (unknown.empty()) return;
  const auto recalled = recall(unknown);
  const std::int64_t meeting = meetings_;
  std::int64_t shared = kNoPart;
  for (std::size_t k = 0; k < unknown.size(); ++k) {
    const Met& met = *unknown[k];
    number_[met.parameter.unsafeGetTensorImpl()] = recalled[k].value_or(slots_.size());
    met_.push_back(met.parameter);
    if (recalled[k]) {
      slots_[*recalled[k]].taken = true;
      continue;
    }
    Slot slot{met.numbers(), kNoPart, wide(met.parameter), meeting, met.name, true, rows_of(met.parameter)};
    if (met.home == Home::kOwn) slot.part = parts_;
    if (met.home == Home::kShared) slot.part = shared = shared == kNoPart ? parts_ : shared;
    append(std::move(slot));
  }
}

namespace {

bool same_place(const Slot& a, const Slot& b) {
  return a.numel == b.numel && a.part == b.part && a.wide == b.wide;
}

}  // namespace

bool ParameterTable::same_places(const ParameterTable& other) const {
  return std::equal(slots_.begin(), slots_.end(), other.slots_.begin(), other.slots_.end(), same_place);
}

void ParameterTable::extend(const ParameterTable& other) {
  const std::size_t common = std::min(slots_.size(), other.slots_.size());
  for (std::size_t i = 0; i < common; ++i)
    if (!same_place(slots_[i], other.slots_[i]))
      throw StateMismatch("parameters",
                          fmt::format("parameter {} has {} entries here and {} in the state; load it into a "
                                      "new sampler of the same model",
                                      i, slots_[i].numel, other.slots_[i].numel));
  for (std::size_t i = common; i < other.slots_.size(); ++i) append(other.slots_[i]);
}

void ParameterTable::save(State& state) const {
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
}

ParameterTable ParameterTable::load(const State& state, std::size_t most) {
  const Array& array = state.array("parameters/numel");
  const std::size_t count = array.bytes.size() / dtype_size(array.dtype);
  const auto numel = state.elements<std::int64_t>("parameters/numel", count);
  const auto part = state.elements<std::int64_t>("parameters/part", count);
  const auto meeting = state.elements<std::int64_t>("parameters/meeting", count);
  const auto is_wide = state.elements<std::uint8_t>("parameters/wide", count);
  const auto names = split_lines(state.text("parameters/names"));
  const auto rows = state.contains("parameters/rows") ? state.elements<std::int64_t>("parameters/rows", count)
                                                      : std::vector<std::int64_t>(count);
  if (names.size() != count && count > 0)
    throw StateMismatch("parameters/names", fmt::format("{} names for {} parameters", names.size(), count));
  ParameterTable table;
  std::size_t left = most;
  for (std::size_t i = 0; i < count; ++i) {
    if (numel[i] < 0 || static_cast<std::size_t>(numel[i]) > left)
      throw StateMismatch(
          "parameters/numel",
          fmt::format("parameter {} with {} entries, more than the state holds", i, numel[i]));
    left -= static_cast<std::size_t>(numel[i]);
    if (part[i] < kNoPart || part[i] > table.parts_)
      throw StateMismatch("parameters/part", fmt::format("part {} for parameter {}; at most {} is possible",
                                                         part[i], i, table.parts_));
    if (meeting[i] < 0 || meeting[i] > static_cast<std::int64_t>(i))
      throw StateMismatch("parameters/meeting",
                          fmt::format("meeting {} for parameter {}; 0..{} are possible", meeting[i], i, i));
    table.append({numel[i], part[i], is_wide[i] != 0, meeting[i], names[i], false, rows[i]});
  }
  return table;
}

}  // namespace cdgrab::torch
