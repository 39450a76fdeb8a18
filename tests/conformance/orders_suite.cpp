// SPDX-License-Identifier: Apache-2.0
#include "conformance/orders_suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/random.hpp"
#include "oracle/order_server.hpp"
#include "property/cases.hpp"

namespace cdgrab::suite {
namespace {

using oracle::OrderServer;
using Orders = std::vector<std::vector<Index>>;

/// One case; every rank knows all of it.
struct Case {
  std::string spec;
  Shares shares;
  std::size_t dim;
  std::vector<float> rows;  ///< one per example

  [[nodiscard]] const float* row(Index example) const { return &rows[example * dim]; }
  [[nodiscard]] std::size_t longest() const {
    std::size_t most = 0;
    for (std::size_t w = 0; w < shares.workers(); ++w) most = std::max(most, shares.size(w));
    return most;
  }
};

/// Dealt at random, worker 1 without any.
Shares uneven(std::size_t examples, std::size_t workers) {
  Orders shares(workers);
  cases::Dice dice(examples);
  for (Index i = 0; i < examples; ++i) {
    const std::size_t worker = dice.roll(workers);
    shares[worker == 1 ? 0 : worker].push_back(i);
  }
  return {examples, shares};
}

Case make_case(const std::string& spec, std::size_t workers, bool strided, bool integers) {
  const std::size_t examples = workers > 20 ? 301 : 8 * workers + 13;
  const std::size_t dim = 3 + workers % 5;
  cases::Dice dice(workers);
  std::vector<float> rows = cases::integer_rows(dice, examples, dim);
  if (!integers)
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i] = static_cast<float>(normal({workers, Purpose::kData, 0, 0}, i));
  return {spec, strided ? Shares::strided(examples, workers) : uneven(examples, workers), dim,
          std::move(rows)};
}

Orders orders_of(const DistributedSampler& sampler) {
  Orders orders;
  for (std::size_t w = 0; w < sampler.workers(); ++w) orders.push_back(sampler.order(w));
  return orders;
}

/// Batches of different lengths; ranks take different numbers of steps.
void deposit_epoch(const Case& test, DistributedSampler& sampler) {
  bool more = true;
  for (std::size_t k = 1; more; ++k) {
    more = false;
    for (std::size_t w = sampler.first_worker(); w < sampler.first_worker() + sampler.hosted(); ++w) {
      const std::vector<Index> examples = sampler.next(w, 1 + (w + k) % 4);
      std::vector<float> batch;
      for (const Index i : examples) batch.insert(batch.end(), test.row(i), test.row(i) + test.dim);
      sampler.deposit(w, Rows<float>{batch.data(), examples.size(), test.dim});
      more = more || !examples.empty();
    }
    if (more) sampler.step();
  }
}

double weight_of(std::size_t worker) { return static_cast<double>(1 + worker % 3); }

/// The weighted mean of everybody's vectors at place t of their orders, worker by worker.
std::vector<float> dull_mean(const Case& test, const Orders& orders, std::size_t t) {
  std::vector<double> sum(test.dim);
  double total = 0.0;
  for (std::size_t w = 0; w < orders.size(); ++w) {
    if (t >= orders[w].size()) continue;
    total += weight_of(w);
    for (std::size_t j = 0; j < test.dim; ++j)
      sum[j] += weight_of(w) * static_cast<double>(test.row(orders[w][t])[j]);
  }
  std::vector<float> mean(test.dim);
  for (std::size_t j = 0; j < test.dim; ++j) mean[j] = static_cast<float>(sum[j] / total);
  return mean;
}

void average_epoch(const Case& test, DistributedSampler& sampler) {
  const Orders orders = orders_of(sampler);
  for (std::size_t t = 0; t < test.longest(); ++t) {
    std::vector<std::span<const float>> gradients;
    std::vector<double> weights;
    for (std::size_t w = sampler.first_worker(); w < sampler.first_worker() + sampler.hosted(); ++w) {
      const std::vector<Index> example = sampler.next(w, 1);
      gradients.emplace_back();
      if (!example.empty()) gradients.back() = {test.row(example[0]), test.dim};
      weights.push_back(example.empty() ? 0.0 : weight_of(w));
    }
    std::vector<float> mean(test.dim);
    sampler.average<float>(gradients, weights, mean);
    if (mean != dull_mean(test, orders, t))
      throw std::runtime_error(fmt::format("another mean at step {}", t));
  }
}

/// What the order server makes of `orders` when every worker shows all its vectors in order.
Orders served(const Case& test, OrderServer& server, std::uint64_t epoch, const Orders& orders) {
  server.begin_epoch(epoch);
  for (std::size_t w = 0; w < orders.size(); ++w)
    for (Index t = 0; t < orders[w].size(); ++t)
      server.see(w, t, OrderServer::Row(test.row(orders[w][t]), test.row(orders[w][t]) + test.dim));
  return server.next_orders(orders);
}

void require_same_on_all(Communicator& communicator, std::uint64_t hash) {
  const auto all = communicator.all_gather(std::as_bytes(std::span(&hash, 1)));
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r] != all[0]) throw std::runtime_error(fmt::format("rank {} holds other orders than rank 0", r));
}

void check_case(Communicator& communicator, const Case& test, bool averaged, bool exact) {
  const Spec spec = parse_spec(test.spec);
  // Vectors that are cut, and short ones that are not.
  const std::size_t whole_up_to = averaged == (test.shares.workers() % 2 == 0) ? 0 : 1024;
  DistributedSampler sampler(test.shares, spec, communicator, {.seed = 5, .whole_up_to = whole_up_to});
  OrderServer server(test.shares.workers(), spec.name == OrderName::kCoordinatedPair, spec.sign, 5,
                     test.shares.examples());
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    const Orders before = orders_of(sampler);
    if (averaged) {
      average_epoch(test, sampler);
    } else {
      deposit_epoch(test, sampler);
    }
    sampler.end_epoch();
    require_same_on_all(communicator, sampler.order_hash());
    if (exact && orders_of(sampler) != served(test, server, epoch, before))
      throw std::runtime_error(fmt::format("other orders than the order server's after epoch {}", epoch));
  }
}

}  // namespace

void check_orders(Communicator& communicator) {
  for (const std::size_t workers : {1UL, 2UL, 3UL, 4UL, 7UL, 64UL}) {
    for (const char* spec : {"cd-pair", "cd-pair; sign=halving", "cd-pair; sign=walk,c=9", "id-pair"}) {
      for (const bool averaged : {false, true}) {
        for (const bool integers : {true, false}) {
          const bool strided = averaged == integers;
          try {
            check_case(communicator, make_case(spec, workers, strided, integers), averaged, integers);
          } catch (const std::runtime_error& error) {
            throw std::runtime_error(fmt::format("rank {} of {}: {}, {} workers, {}, {} numbers: {}",
                                                 communicator.rank(), communicator.ranks(), spec, workers,
                                                 averaged ? "averaging" : "depositing",
                                                 integers ? "whole" : "real", error.what()));
          }
        }
      }
    }
  }
}

}  // namespace cdgrab::suite
