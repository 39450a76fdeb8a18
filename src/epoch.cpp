// SPDX-License-Identifier: Apache-2.0
#include "epoch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab {

Epoch::Epoch(std::size_t examples, std::size_t unit, unsigned levels, bool repeats)
    : examples_(examples),
      unit_(unit),
      units_(unit_count(examples, unit)),
      codes_below_((2U << levels) - 1),
      repeats_(repeats) {}

Index Epoch::name_of(Index example) const { return names_ ? names_(example) : example; }

void Epoch::start(std::vector<Index> order) {
  order_ = std::move(order);
  codes_.assign(units_, kUnobserved);
  inverse_.clear();
  observed_ = 0;
  oldest_ = 0;
  seek(0);
}

std::size_t Epoch::examples_before(std::size_t position) const {
  return std::min(position * unit_, examples_);
}

std::size_t Epoch::size_at(std::size_t position) const {
  return examples_before(position + 1) - examples_before(position);
}

bool Epoch::passes_over(std::size_t position) const { return !replays_ && codes_[position] != kUnobserved; }

void Epoch::hand_out_unit() {
  if (codes_[handed_units_] != kUnobserved) ++observed_below_;
  ++handed_units_;
  within_ = 0;
}

void Epoch::pass_over_observed() {
  while (!through() && passes_over(handed_units_)) hand_out_unit();
}

void Epoch::seek(std::size_t examples) {
  replays_ = false;
  start_ = examples;
  handed_units_ = 0;
  observed_below_ = 0;
  while (examples_before(handed_units_ + 1) <= examples && !through()) hand_out_unit();
  within_ = examples - examples_before(handed_units_);
  pass_over_observed();
}

void Epoch::replay() {
  replays_ = true;
  handed_units_ = 0;
  within_ = 0;
  observed_below_ = 0;
}

void Epoch::restart() {
  if (replays_)
    replay();
  else
    seek(start_);
}

std::span<const Index> Epoch::next(std::size_t count) {
  handed_.clear();
  const std::size_t begin = handed_units_;
  const bool in_one_piece = unit_ == 1 && (replays_ || observed_ == observed_below_);
  while (count > 0 && !through()) {
    const std::size_t size = size_at(handed_units_);
    const std::size_t taken = std::min(count, size - within_);
    if (!in_one_piece)
      for (std::size_t i = 0; i < taken; ++i)
        handed_.push_back(static_cast<Index>(std::size_t{order_[handed_units_]} * unit_ + within_ + i));
    within_ += taken;
    count -= taken;
    if (within_ == size) {
      hand_out_unit();
      pass_over_observed();
    }
  }
  if (!in_one_piece) return handed_;
  return std::span<const Index>(order_).subspan(begin, handed_units_ - begin);
}

std::vector<Index> Epoch::upcoming(std::size_t count) const {
  std::vector<Index> examples;
  std::size_t within = within_;
  for (std::size_t t = handed_units_; t < units_ && examples.size() < count; ++t, within = 0) {
    if (passes_over(t)) continue;
    const std::size_t first = std::size_t{order_[t]} * unit_;
    const std::size_t size = size_at(t);
    for (; within < size && examples.size() < count; ++within)
      examples.push_back(static_cast<Index>(first + within));
  }
  return examples;
}

bool Epoch::has_left(std::size_t examples) const {
  std::size_t found = 0;
  std::size_t within = within_;
  for (std::size_t t = handed_units_; t < units_ && found < examples; ++t, within = 0)
    if (!passes_over(t)) found += size_at(t) - within;
  return found >= examples;
}

std::size_t Epoch::observed_prefix() const { return examples_before(oldest_); }

std::vector<Index> Epoch::oldest(std::size_t count) const {
  if (count > outstanding())
    throw UserError(
        "Sampler::observe",
        fmt::format("{} vectors for {} outstanding units (handed out and not yet observed); at most "
                    "that many are allowed: observe only what next() has handed out, or name the "
                    "examples",
                    count, outstanding()));
  std::vector<Index> positions;
  positions.reserve(count);
  for (std::size_t t = oldest_; positions.size() < count; ++t)
    if (codes_[t] == kUnobserved) positions.push_back(static_cast<Index>(t));
  return positions;
}

Index Epoch::position_of(Index example) const {
  if (example >= examples_)
    throw UserError("Sampler::observe",
                    fmt::format("example {} of {}; allowed are 0..n-1", example, examples_));
  const Index position = inverse_[example / unit_];
  if (position >= handed_units_)
    throw UserError(
        "Sampler::observe",
        fmt::format("example {} has not been handed out in this epoch; observe it after next() has "
                    "returned it",
                    name_of(example)));
  if (codes_[position] != kUnobserved)
    throw UserError(
        "Sampler::observe",
        fmt::format("example {} was observed before in this epoch; each is observed once", name_of(example)));
  return position;
}

std::vector<Index> Epoch::named(std::span<const Index> examples) {
  // Where a unit can stand at several positions, its name does not tell which one is meant.
  if (repeats_) return oldest(examples.size());
  if (inverse_.empty()) inverse_ = inverse_order(order_);
  std::vector<Index> positions;
  positions.reserve(examples.size());
  for (const Index example : examples) positions.push_back(position_of(example));
  std::vector<Index> sorted = positions;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end())
    throw UserError("Sampler::observe",
                    fmt::format("unit {} is named twice in one call; each is observed once", order_[*twice]));
  return positions;
}

void Epoch::count_observed(std::span<const Index> positions) {
  observed_ += positions.size();
  for (const Index position : positions)
    if (position < handed_units_) ++observed_below_;
  while (oldest_ < units_ && codes_[oldest_] != kUnobserved) ++oldest_;
}

void Epoch::save(State& state) const {
  state.set("handed_out", static_cast<std::int64_t>(handed_out()));
  state.set("observed", static_cast<std::int64_t>(observed_));
  state.set("order.current", std::span<const Index>(order_));
  state.set("codes", std::span<const Code>(codes_));
}

void Epoch::load(const State& state) {
  auto order = state.elements<Index>("order.current", units_);
  auto codes = state.elements<Code>("codes", units_);
  const bool valid = repeats_
                         ? std::all_of(order.begin(), order.end(), [this](Index i) { return i < units_; })
                         : is_permutation(order);
  if (!valid)
    throw StateMismatch("Sampler::load",
                        fmt::format("'{}' is not an order of {} units", state.name("order.current"), units_));
  if (!short_unit_is_last(order))
    throw StateMismatch("Sampler::load",
                        fmt::format("'{}' ends with unit {}; unit {}, which is short, has the last "
                                    "place of every order",
                                    state.name("order.current"), order.back(), units_ - 1));
  const auto foreign = std::find_if(codes.begin(), codes.end(),
                                    [this](Code code) { return code >= codes_below_ && code < kNotFinite; });
  if (foreign != codes.end())
    throw StateMismatch("Sampler::load", fmt::format("'{}' holds {}, which no tree of this spec has",
                                                     state.name("codes"), *foreign));
  start(std::move(order));
  codes_ = std::move(codes);
  for (const Code code : codes_) observed_ += code == kUnobserved ? 0 : 1;
  while (oldest_ < units_ && codes_[oldest_] != kUnobserved) ++oldest_;
  const std::int64_t handed_out = state.integer("handed_out");
  if (handed_out < 0 || static_cast<std::uint64_t>(handed_out) > examples_)
    throw StateMismatch("Sampler::load", fmt::format("'{}' is {}, outside 0..{}", state.name("handed_out"),
                                                     handed_out, examples_));
  seek(static_cast<std::size_t>(handed_out));
}

}  // namespace cdgrab
