// SPDX-License-Identifier: Apache-2.0
#include "oracle/order_server.hpp"

#include <cmath>
#include <map>

namespace cdgrab::oracle {

OrderServer::OrderServer(std::size_t workers, bool shared, const SignOptions& sign, std::uint64_t seed,
                         std::size_t units)
    : shared_(shared), rule_(sign, seed, units), arrived_(workers) {}

void OrderServer::begin_epoch(std::uint64_t epoch) {
  rule_.begin_epoch(epoch);
  for (auto& of_worker : arrived_) of_worker.clear();
}

void OrderServer::see(std::size_t worker, Index position, const Row& x) {
  for (const double value : x)
    if (!std::isfinite(value)) return;
  arrived_[worker].push_back({position, x});
}

OrderServer::Orders OrderServer::next_orders(const Orders& orders) {
  const std::size_t workers = arrived_.size();
  std::size_t most = 0;
  for (const auto& of_worker : arrived_)
    if (of_worker.size() / 2 > most) most = of_worker.size() / 2;

  std::vector<std::map<Index, int>> sides(workers);
  std::vector<Row> accumulators(shared_ ? 1 : workers);
  for (std::size_t k = 0; k < most; ++k) {
    for (std::size_t i = 0; i < workers; ++i) {
      if (2 * k + 1 >= arrived_[i].size()) continue;
      const Arrival& first = arrived_[i][2 * k];
      const Arrival& second = arrived_[i][2 * k + 1];
      Row& s = accumulators[shared_ ? 0 : i];
      s.resize(first.x.size());
      double product = 0.0;
      double norm2 = 0.0;
      for (std::size_t j = 0; j < s.size(); ++j) {
        const double d = first.x[j] - second.x[j];
        product += d * s[j];
        norm2 += d * d;
      }
      const int sign = rule_.decide(product, norm2, {second.position, static_cast<std::uint32_t>(i)});
      for (std::size_t j = 0; j < s.size(); ++j) s[j] += sign * (first.x[j] - second.x[j]);
      sides[i][first.position] = sign;
      sides[i][second.position] = -sign;
    }
  }

  Orders next(workers);
  for (std::size_t i = 0; i < workers; ++i) {
    const std::vector<Index>& order = orders[i];
    for (Index t = 0; t < order.size(); ++t)
      if (sides[i].contains(t) && sides[i][t] > 0) next[i].push_back(order[t]);
    for (Index t = 0; t < order.size(); ++t)
      if (!sides[i].contains(t)) next[i].push_back(order[t]);
    for (std::size_t t = order.size(); t-- > 0;)
      if (sides[i].contains(static_cast<Index>(t)) && sides[i][static_cast<Index>(t)] < 0)
        next[i].push_back(order[t]);
  }
  return next;
}

}  // namespace cdgrab::oracle
