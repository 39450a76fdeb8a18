// SPDX-License-Identifier: Apache-2.0
#include "oracle/dull.hpp"

#include <algorithm>
#include <cmath>

namespace cdgrab::oracle {
namespace {

double dot(const Row& x, const Row& y) {
  double total = 0.0;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) total += x[i] * y[i];
  return total;
}

/// x + weight * y, where an empty vector is zero.
Row plus(Row x, double weight, const Row& y) {
  x.resize(std::max(x.size(), y.size()));
  for (std::size_t i = 0; i < y.size(); ++i) x[i] += weight * y[i];
  return x;
}

bool is_finite(const Row& x) {
  return std::all_of(x.begin(), x.end(), [](double value) { return std::isfinite(value); });
}

}  // namespace

void Dull::begin_epoch(std::uint64_t epoch) { sign_.begin_epoch(epoch); }

void Dull::see(Index position, Row x) {
  if (!is_finite(x)) return;
  if (spec_.normalize && dot(x, x) > 0.0) {
    const double norm = std::sqrt(dot(x, x));
    for (double& value : x) value /= norm;
  }
  ++seen_;
  sum_ = plus(sum_, 1.0, x);
  Row centred = x;
  if (spec_.centring == Centring::kMean) centred = plus(x, -1.0, mean_);
  if (spec_.centring == Centring::kEma) centred = plus(x, -1.0, ema_);
  arrive("", position, centred);
  if (spec_.centring == Centring::kEma) {
    for (double& value : ema_) value *= spec_.beta;
    ema_ = plus(ema_, 1.0 - spec_.beta, x);
  }
  if (spec_.block > 0 && ++in_block_ == spec_.block) thaw();
}

void Dull::arrive(const std::string& path, Index position, const Row& x) {
  if (path.size() == spec_.levels()) {
    paths_[position] = path;
    return;
  }
  if (spec_.centring != Centring::kPair) {
    const int sign = decide(path, position, x);
    return arrive(path + (sign > 0 ? '+' : '-'), position, x);
  }
  Node& node = nodes_[path];
  if (!node.waiting) {
    node.waiting = Waiting{position, x};
    return;
  }
  const Waiting first = *node.waiting;
  node.waiting.reset();
  const int sign = decide(path, position, plus(first.x, -1.0, x));
  arrive(path + (sign > 0 ? '+' : '-'), first.position, first.x);
  arrive(path + (sign > 0 ? '-' : '+'), position, x);
}

int Dull::decide(const std::string& path, Index position, const Row& x) {
  Node& node = nodes_[path];
  const double product = dot(x, node.s);
  const int sign = sign_.decide(product, dot(x, x), {position, static_cast<std::uint32_t>(path.size())});
  if (product != 0.0)
    smallest_margin_ =
        std::min(smallest_margin_, std::abs(product) / std::sqrt(dot(x, x) * dot(node.s, node.s)));
  if (spec_.frozen)
    node.next_s = plus(node.next_s, sign, x);
  else
    node.s = plus(node.s, sign, x);
  return sign;
}

void Dull::thaw() {
  for (auto& [path, node] : nodes_)
    if (spec_.frozen) node.s = node.next_s;
  in_block_ = 0;
}

void Dull::end_batch() {
  if (spec_.block == 0) thaw();
}

std::vector<Index> Dull::next_order(const std::vector<Index>& order, bool last_is_short) const {
  if (last_is_short) {
    std::vector<Index> next = next_order({order.begin(), order.end() - 1});
    next.push_back(order.back());
    return next;
  }
  const auto at = [&](const auto& self, const std::string& path) -> std::vector<Index> {
    std::vector<Index> out;
    if (path.size() == spec_.levels()) {
      for (Index t = 0; t < order.size(); ++t)
        if (const auto found = paths_.find(t); found != paths_.end() && found->second == path)
          out.push_back(order[t]);
      if (path.back() == '-') std::reverse(out.begin(), out.end());
      return out;
    }
    out = self(self, path + '+');
    for (Index t = 0; t < order.size(); ++t) {
      const auto node = nodes_.find(path);
      const bool waits = node != nodes_.end() && node->second.waiting && node->second.waiting->position == t;
      const bool waits_anywhere = std::any_of(nodes_.begin(), nodes_.end(), [t](const auto& entry) {
        return entry.second.waiting && entry.second.waiting->position == t;
      });
      const bool unseen = path.empty() && !paths_.contains(t) && !waits_anywhere;
      if (waits || unseen) out.push_back(order[t]);
    }
    const std::vector<Index> minus = self(self, path + '-');
    out.insert(out.end(), minus.begin(), minus.end());
    return out;
  };
  return at(at, "");
}

void Dull::end_epoch() {
  if (seen_ > 0) {
    mean_ = sum_;
    for (double& value : mean_) value /= static_cast<double>(seen_);
  }
  sum_.clear();
  seen_ = 0;
  in_block_ = 0;
  nodes_.clear();
  paths_.clear();
}

}  // namespace cdgrab::oracle
