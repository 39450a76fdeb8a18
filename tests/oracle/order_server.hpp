// SPDX-License-Identifier: Apache-2.0
// The order server of the CD-GraB paper as the dullest possible loops: one process that keeps every vector of
// every worker for the whole epoch and balances when it is over (docs/math.md, section 5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cdgrab/permutation.hpp"
#include "cdgrab/sign_rule.hpp"

namespace cdgrab::oracle {

class OrderServer {
 public:
  using Row = std::vector<double>;
  using Orders = std::vector<std::vector<Index>>;

  /// `shared`: one accumulator for all workers, in turn; else one each. `units`: of all workers.
  OrderServer(std::size_t workers, bool shared, const SignOptions& sign, std::uint64_t seed,
              std::size_t units);

  void begin_epoch(std::uint64_t epoch);
  /// The vector of the unit at this position of the worker's order, in order of arrival.
  void see(std::size_t worker, Index position, const Row& x);
  /// The orders that follow these.
  [[nodiscard]] Orders next_orders(const Orders& orders);

 private:
  struct Arrival {
    Index position;
    Row x;
  };
  struct Decided {
    Index position;
    int sign;
  };

  bool shared_;
  SignRule rule_;
  std::vector<std::vector<Arrival>> arrived_;
};

}  // namespace cdgrab::oracle
