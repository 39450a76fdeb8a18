// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/balancer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cdgrab/error.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab {

/// One call of observe().
struct Balancer::Block {
  Geometry& geometry;
  std::span<const Index> positions;
  std::span<Code> codes;
  std::vector<Index> rows;  ///< still to be balanced, in order; rows that are not finite are struck out
  std::size_t next = 0;     ///< the first of them that is not balanced yet
};

namespace {

std::size_t node_at(unsigned level, std::uint32_t bits) { return (std::size_t{1} << level) - 1 + bits; }

std::int64_t bounded(std::int64_t value, std::string_view key, std::size_t most) {
  if (value >= 0 && static_cast<std::uint64_t>(value) <= most) return value;
  throw StateMismatch(
      "Balancer::load",
      fmt::format("'{}' holds {}, outside 0..{}; this is not a state that cdgrab wrote", key, value, most));
}

std::uint32_t child(std::uint32_t bits, int sign) { return 2 * bits + (sign < 0 ? 1U : 0U); }

}  // namespace

Balancer::Balancer(const Spec& spec, std::uint64_t seed, std::size_t n)
    : spec_(spec), n_(n), sign_(spec.sign, seed, n) {
  if (pairs()) carries_.resize(nodes());
  if (spec_.frozen) touched_.resize(nodes());
}

Register Balancer::carry(std::size_t node) const { return nodes() * (spec_.frozen ? 2 : 1) + node; }

Register Balancer::centre() const { return nodes() * (spec_.frozen ? 2 : 1); }

std::vector<std::string> Balancer::registers() const {
  std::vector<std::string> names;
  const auto per_node = [&](std::string_view what) {
    for (std::size_t node = 0; node < nodes(); ++node) names.push_back(fmt::format("{}.{}", what, node));
  };
  per_node("accumulator");
  if (spec_.frozen) per_node("delta");
  if (pairs()) per_node("carry");
  if (spec_.centring == Centring::kMean) names.insert(names.end(), {"mean", "total"});
  if (spec_.centring == Centring::kEma) names.emplace_back("ema");
  return names;
}

void Balancer::begin_epoch(std::uint64_t epoch) { sign_.begin_epoch(epoch); }

void Balancer::observe(Geometry& geometry, std::span<const Index> positions, std::span<Code> codes) {
  Block block{geometry, positions, codes, std::vector<Index>(positions.size()), 0};
  std::iota(block.rows.begin(), block.rows.end(), Index{0});
  while (block.next < block.rows.size()) {
    const std::size_t count = take(block);
    if (arrive(block, count)) after_group(block, count);
  }
  if (spec_.frozen && spec_.block == 0) thaw(geometry);
  if (pairs()) store_carries(geometry);
  geometry.end_block();
}

/// How many rows to bring to the root next: as many as the geometry likes to decide together, but
/// not past the end of a frozen block.
std::size_t Balancer::take(const Block& block) const {
  std::size_t count = block.geometry.group_size(pairs(), true);
  if (pairs()) count = 2 * count - (carries_[0].waits ? 1 : 0);
  if (spec_.centring == Centring::kEma) count = 1;
  if (spec_.frozen && spec_.block > 0) count = std::min(count, spec_.block - in_block_);
  return std::min(count, block.rows.size() - block.next);
}

/// Sends the next `count` rows down the tree. False, with nothing changed but the rows struck out,
/// if one of them is not finite.
bool Balancer::arrive(Block& block, std::size_t count) {
  if (!usable(block, count)) {
    reject(block, count, {});
    return false;
  }
  const Carry waiting = pairs() ? carries_[0] : Carry{};
  meet_all(block, 0);
  if (!decide_level(block, 0)) {
    if (pairs()) carries_[0] = waiting;
    reject(block, count, decisions_);
    return false;
  }
  descend(block, 0);
  go_down(block);
  return true;
}

/// From the root's children to the leaves, a few arrivals at a time.
void Balancer::go_down(Block& block) {
  if (arrivals_.empty()) return;
  below_root_.swap(arrivals_);
  const std::size_t most = block.geometry.group_size(pairs(), false);
  for (std::size_t begin = 0; begin < below_root_.size(); begin += most) {
    const auto first = below_root_.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = first + static_cast<std::ptrdiff_t>(std::min(most, below_root_.size() - begin));
    arrivals_.assign(first, last);
    for (unsigned level = 1; level < spec_.levels(); ++level) {
      meet_all(block, level);
      decide_level(block, level);
      descend(block, level);
    }
  }
}

/// The arrivals at the root, to unit length if the spec says so (zero stays zero). False if a row is
/// seen to be unfit before any product is taken.
bool Balancer::usable(Block& block, std::size_t count) {
  arrivals_.clear();
  for (std::size_t i = block.next; i < block.next + count; ++i) {
    const Index row = block.rows[i];
    double scale = 1.0;
    if (spec_.normalize) {
      const double norm2 = block.geometry.norm2(row);
      if (!std::isfinite(norm2)) return false;
      if (norm2 > 0.0) scale = 1.0 / std::sqrt(norm2);
    }
    arrivals_.push_back({Operand::row(row, scale), block.positions[row], 0});
  }
  // A row that will be left waiting takes part in no product that would show what it is.
  const bool one_waits = pairs() && (count + (carries_[0].waits ? 1 : 0)) % 2 == 1;
  return !one_waits || block.geometry.finite(block.rows[block.next + count - 1]);
}

void Balancer::meet_all(Block& block, unsigned level) {
  decisions_.clear();
  for (const Arrival& arrival : arrivals_) meet(level, arrival, block);
}

/// A decision, or a wait for the next arrival at the node.
void Balancer::meet(unsigned level, const Arrival& arrival, Block& block) {
  const std::size_t node = node_at(level, arrival.bits);
  if (!pairs()) {
    decisions_.push_back({arrival, {}, node, 0});
    return;
  }
  Carry& waiting = carries_[node];
  if (waiting.waits) {
    decisions_.push_back({waiting.arrival, arrival, node, 0});
    waiting.waits = false;
  } else {
    waiting = {true, arrival};
    block.codes[arrival.position] = middle_code(arrival.bits, level, spec_.levels());
  }
}

Vector Balancer::vector_of(const Decision& decision) const {
  if (pairs()) return {decision.first.source, decision.second.source, true};
  if (spec_.centring == Centring::kNone) return {decision.first.source, {}, false};
  return {decision.first.source, Operand::reg(centre()), true};
}

/// Decides a level's decisions a group at a time. False if a product at the root is not finite.
bool Balancer::decide_level(Block& block, unsigned level) {
  const std::size_t most = block.geometry.group_size(pairs(), level == 0);
  const std::span<Decision> all(decisions_);
  for (std::size_t begin = 0; begin < all.size(); begin += most) {
    const auto group = all.subspan(begin, std::min(most, all.size() - begin));
    // Without pairing the same vectors go on down: formed once, and their Gram matrix with them.
    if (!decide(block, level, group, pairs() || level <= 1)) return false;
    update(block, level, group);
  }
  return true;
}

bool Balancer::decide(Block& block, unsigned level, std::span<Decision> decisions, bool first_time) {
  against_.clear();
  for (const Decision& d : decisions) against_.push_back(accumulator(d.node));
  if (first_time) {
    vectors_.clear();
    for (const Decision& d : decisions) vectors_.push_back(vector_of(d));
    block.geometry.form(vectors_);
  }
  const Wanted wanted{first_time && !spec_.frozen && decisions.size() > 1, sign_.needs_norm()};
  block.geometry.products(against_, wanted, products_);
  if (level == 0) {
    const auto finite = [](double product) { return std::isfinite(product); };
    if (!std::all_of(products_.inner.begin(), products_.inner.end(), finite)) return false;
  }
  for (std::size_t k = 0; k < decisions.size(); ++k) {
    double product = products_.inner[k];
    for (std::size_t j = 0; j < k && !spec_.frozen; ++j)
      if (decisions[j].node == decisions[k].node)
        product += decisions[j].sign * products_.gram[k * (k - 1) / 2 + j];
    const Arrival& last = pairs() ? decisions[k].second : decisions[k].first;
    const double norm2 = wanted.norms ? products_.norms[k] : 0.0;
    decisions[k].sign = sign_.decide(product, norm2, {last.position, level});
  }
  return true;
}

/// s_node += sum of sign * v over the decisions at the node; while frozen, into the node's delta.
/// At the root, what the next mean is made of as well.
void Balancer::update(Block& block, unsigned level, std::span<const Decision> decisions) {
  const auto decided_before = [&](std::size_t k) {
    return std::any_of(decisions.begin(), decisions.begin() + static_cast<std::ptrdiff_t>(k),
                       [&](const Decision& d) { return d.node == decisions[k].node; });
  };
  for (std::size_t k = 0; k < decisions.size(); ++k) {
    if (decided_before(k)) continue;
    const std::size_t node = decisions[k].node;
    weights_.clear();
    for (std::size_t j = k; j < decisions.size(); ++j)
      if (decisions[j].node == node) weights_.push_back({j, static_cast<double>(decisions[j].sign)});
    block.geometry.combine(spec_.frozen ? delta(node) : accumulator(node), weights_);
    if (spec_.frozen) touched_[node] = 1;
  }
  if (level > 0 || spec_.centring != Centring::kMean) return;
  weights_.clear();
  for (std::size_t k = 0; k < decisions.size(); ++k) weights_.push_back({k, 1.0});
  block.geometry.combine(total(), weights_);
}

/// Everything that was decided goes to its child, or into its bucket.
void Balancer::descend(Block& block, unsigned level) {
  arrivals_.clear();
  const auto send = [&](Arrival arrival, int sign) {
    arrival.bits = child(arrival.bits, sign);
    if (level + 1 == spec_.levels())
      block.codes[arrival.position] = leaf_code(arrival.bits);
    else
      arrivals_.push_back(arrival);
  };
  for (const Decision& d : decisions_) {
    send(d.first, d.sign);
    if (pairs()) send(d.second, -d.sign);
  }
}

/// Strikes out the rows that are not finite; if all are, those whose products overflow.
void Balancer::reject(Block& block, std::size_t count, std::span<const Decision> decisions) {
  const auto begin = block.rows.begin() + static_cast<std::ptrdiff_t>(block.next);
  const auto end = begin + static_cast<std::ptrdiff_t>(count);
  std::size_t struck = 0;
  const auto strike = [&](Index position) {
    block.codes[position] = kNotFinite;
    if (pairs() && carries_[0].arrival.position == position) carries_[0].waits = false;
    ++struck;
  };
  for (auto row = begin; row != end; ++row)
    if (!block.geometry.finite(*row)) strike(block.positions[*row]);
  for (auto row = begin; row != end && spec_.normalize && struck == 0; ++row)
    if (!std::isfinite(block.geometry.norm2(*row))) strike(block.positions[*row]);
  for (std::size_t k = 0; k < decisions.size() && struck == 0; ++k) {
    if (std::isfinite(products_.inner[k])) continue;
    strike(decisions[k].first.position);
    if (pairs()) strike(decisions[k].second.position);
  }
  block.rows.erase(
      std::remove_if(begin, end, [&](Index row) { return block.codes[block.positions[row]] == kNotFinite; }),
      end);
}

void Balancer::after_group(Block& block, std::size_t count) {
  Geometry& geometry = block.geometry;
  if (spec_.centring == Centring::kEma) {
    Operand x = Operand::row(block.rows[block.next]);
    x.scale = vectors_[0].first.scale * (1.0 - spec_.beta);
    geometry.blend(centre(), spec_.beta, x);
  }
  block.next += count;
  seen_ += count;
  in_block_ += count;
  if (spec_.frozen && spec_.block > 0 && in_block_ == spec_.block) thaw(geometry);
}

/// The end of a frozen block: the accumulators move at once.
void Balancer::thaw(Geometry& geometry) {
  for (std::size_t node = 0; node < nodes(); ++node) {
    if (touched_[node] == 0) continue;
    geometry.blend(accumulator(node), 1.0, Operand::reg(delta(node)));
    geometry.clear(delta(node));
    touched_[node] = 0;
  }
  in_block_ = 0;
}

/// The rows go, so what waits must be copied. Deepest nodes first: a carry can only have come down
/// from an ancestor's register, which is written after it.
void Balancer::store_carries(Geometry& geometry) {
  for (std::size_t node = nodes(); node-- > 0;) {
    Carry& waiting = carries_[node];
    if (!waiting.waits || waiting.arrival.source == Operand::reg(carry(node))) continue;
    geometry.blend(carry(node), 0.0, waiting.arrival.source);
    waiting.arrival.source = Operand::reg(carry(node));
  }
}

void Balancer::end_epoch(Geometry& geometry) {
  if (spec_.centring == Centring::kMean && seen_ > 0) {
    // total holds the sum of what was left after centring, so the mean moves by its average.
    geometry.blend(centre(), 1.0, Operand::reg(total(), 1.0 / static_cast<double>(seen_)));
    geometry.clear(total());
  }
  for (std::size_t node = 0; node < nodes(); ++node) {
    geometry.clear(accumulator(node));
    if (spec_.frozen) geometry.clear(delta(node));
  }
  std::fill(carries_.begin(), carries_.end(), Carry{});
  std::fill(touched_.begin(), touched_.end(), std::uint8_t{0});
  in_block_ = 0;
  seen_ = 0;
}

bool Balancer::waits() const {
  return std::any_of(carries_.begin(), carries_.end(), [](const Carry& c) { return c.waits; });
}

void Balancer::save(State& state) const {
  sign_.save(state);
  state.set("balancer.seen", static_cast<std::int64_t>(seen_));
  if (spec_.frozen) {
    state.set("balancer.in_block", static_cast<std::int64_t>(in_block_));
    state.set("balancer.touched", std::span<const std::uint8_t>(touched_));
  }
  if (!pairs()) return;
  std::vector<std::int64_t> waiting;
  for (const Carry& c : carries_) waiting.push_back(c.waits ? std::int64_t{c.arrival.position} : -1);
  state.set("balancer.waiting", std::span<const std::int64_t>(waiting));
}

void Balancer::load(const State& state, std::span<const Code> codes) {
  sign_.load(state);
  seen_ = static_cast<std::size_t>(bounded(state.integer("balancer.seen"), state.name("balancer.seen"), n_));
  if (spec_.frozen) {
    const std::size_t most = spec_.block > 0 ? spec_.block - 1 : n_;
    in_block_ = static_cast<std::size_t>(
        bounded(state.integer("balancer.in_block"), state.name("balancer.in_block"), most));
    touched_ = state.elements<std::uint8_t>("balancer.touched", nodes());
  }
  if (!pairs()) return;
  const auto waiting = state.elements<std::int64_t>("balancer.waiting", nodes());
  for (unsigned level = 0; level < spec_.levels(); ++level) {
    for (std::uint32_t bits = 0; bits < (1U << level); ++bits) {
      const std::size_t node = node_at(level, bits);
      carries_[node] = Carry{};
      if (waiting[node] < 0) continue;
      if (n_ == 0) throw StateMismatch("Balancer::load", "a unit waits for its partner, and there are none");
      const auto position =
          static_cast<Index>(bounded(waiting[node], state.name("balancer.waiting"), n_ - 1));
      // Else it would get a code, and count as observed, a second time.
      const Code expected = middle_code(bits, level, spec_.levels());
      if (codes[position] != expected)
        throw StateMismatch(
            "Balancer::load",
            fmt::format("'{}' holds {}, whose code is {}, and {} is that of what waits there; "
                        "this is not a state that cdgrab wrote",
                        state.name("balancer.waiting"), position, codes[position], expected));
      carries_[node] = {true, {Operand::reg(carry(node)), position, bits}};
    }
  }
}

}  // namespace cdgrab
