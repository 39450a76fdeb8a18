// SPDX-License-Identifier: Apache-2.0
#include "workers/lanes.hpp"

#include <fmt/format.h>

#include "cdgrab/error.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab {

Lanes::Lanes(std::vector<std::size_t> units) : lanes_(units.size()) {
  for (std::size_t worker = 0; worker < units.size(); ++worker) lanes_[worker].units = units[worker];
  start();
}

void Lanes::start(std::span<const std::size_t> arrived) {
  for (std::size_t worker = 0; worker < lanes_.size(); ++worker) {
    Lane& lane = lanes_[worker];
    lane.to_come = lane.units - (arrived.empty() ? 0 : arrived[worker]);
    lane.carry.reset();
    lane.pairs.clear();
  }
  turn_ = 0;
  waiting_ = 0;
  next_number_ = 0;
}

bool Lanes::arrive(std::size_t worker, Index position) {
  Lane& lane = lanes_[worker];
  --lane.to_come;
  if (!lane.carry) {
    lane.carry = position;
    return false;
  }
  lane.pairs.push_back({worker, *lane.carry, position, next_number_++});
  lane.carry.reset();
  ++waiting_;
  return true;
}

void Lanes::pass_over(std::size_t worker, Index position) {
  Lane& lane = lanes_[worker];
  if (lane.carry == position)
    lane.carry.reset();
  else
    --lane.to_come;
}

std::vector<WaitingPair> Lanes::due() {
  std::vector<WaitingPair> pairs;
  while (waiting_ > 0) {
    Lane& lane = lanes_[turn_];
    if (!lane.pairs.empty()) {
      pairs.push_back(lane.pairs.front());
      lane.pairs.pop_front();
      --waiting_;
    } else if (lane.may_pair()) {
      break;
    }
    turn_ = (turn_ + 1) % lanes_.size();
  }
  return pairs;
}

std::vector<WaitingPair> Lanes::waiting() const {
  std::vector<WaitingPair> pairs;
  for (const Lane& lane : lanes_) pairs.insert(pairs.end(), lane.pairs.begin(), lane.pairs.end());
  return pairs;
}

void Lanes::save(State& state) const {
  std::vector<std::int64_t> carries;
  std::vector<std::int64_t> to_come;
  for (const Lane& lane : lanes_) {
    carries.push_back(lane.carry ? std::int64_t{*lane.carry} : -1);
    to_come.push_back(static_cast<std::int64_t>(lane.to_come));
  }
  std::vector<std::int64_t> pairs;
  for (const WaitingPair& pair : waiting())
    pairs.insert(pairs.end(), {static_cast<std::int64_t>(pair.worker), pair.first, pair.second});
  state.set("turn", static_cast<std::int64_t>(turn_));
  state.set("to_come", std::span<const std::int64_t>(to_come));
  state.set("carries", std::span<const std::int64_t>(carries));
  state.set("pairs", Array{DType::kI64,
                           {pairs.size() / 3, 3},
                           {std::as_bytes(std::span(pairs)).begin(), std::as_bytes(std::span(pairs)).end()}});
}

void Lanes::load(const State& state) {
  const auto check = [&](std::string_view key, std::int64_t value, std::size_t below) {
    if (value >= 0 && static_cast<std::uint64_t>(value) < below) return static_cast<std::size_t>(value);
    throw StateMismatch("DistributedSampler::load",
                        fmt::format("'{}' holds {}, outside 0..{}; this is not a state that cdgrab wrote",
                                    state.name(key), value, below));
  };
  turn_ = check("turn", state.integer("turn"), lanes_.size());
  const auto carries = state.elements<std::int64_t>("carries", lanes_.size());
  const auto to_come = state.elements<std::int64_t>("to_come", lanes_.size());
  for (std::size_t worker = 0; worker < lanes_.size(); ++worker) {
    Lane& lane = lanes_[worker];
    lane.to_come = check("to_come", to_come[worker], lane.units + 1);
    if (carries[worker] >= 0) lane.carry = static_cast<Index>(check("carries", carries[worker], lane.units));
  }
  const Array& stored = state.array("pairs");
  if (stored.dtype != DType::kI64 || stored.shape.size() != 2 || stored.shape[1] != 3)
    throw StateMismatch("DistributedSampler::load",
                        fmt::format("'{}' is not an array of I64 with three columns", state.name("pairs")));
  State flat;
  flat.set("pairs", Array{DType::kI64, {stored.shape[0] * 3}, stored.bytes});
  const auto pairs = flat.elements<std::int64_t>("pairs", stored.shape[0] * 3);
  for (std::size_t k = 0; k < pairs.size(); k += 3) {
    const std::size_t worker = check("pairs", pairs[k], lanes_.size());
    Lane& lane = lanes_[worker];
    lane.pairs.push_back({worker, static_cast<Index>(check("pairs", pairs[k + 1], lane.units)),
                          static_cast<Index>(check("pairs", pairs[k + 2], lane.units)), next_number_++});
    ++waiting_;
  }
}

}  // namespace cdgrab
