// SPDX-License-Identifier: Apache-2.0
// Many workers on threads: against the order server, against one worker, against itself on other numbers of
// ranks, behind training, stopped and resumed, and with ranks that fail.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "cdgrab/cdgrab.hpp"
#include "oracle/order_server.hpp"
#include "property/cases.hpp"

namespace cdgrab {
namespace {

using cases::Dice;
using oracle::OrderServer;
using Orders = std::vector<std::vector<Index>>;

/// Everything that a run is a function of, except for the ranks.
struct World {
  Shares shares;
  Spec spec;
  std::uint64_t seed = 0;
  std::size_t dim = 1;
  std::vector<float> rows;  ///< one per example; a unit's is that of its first
  bool whole = true;        ///< every example is observed, in order; else some are missed, late or not finite
  std::size_t epochs = 3;
  std::size_t most = 6;  ///< examples at once

  [[nodiscard]] std::size_t workers() const { return shares.workers(); }
  [[nodiscard]] std::string name() const {
    return print_spec(spec) + ", seed " + std::to_string(seed) + ", M = " + std::to_string(workers()) +
           ", n = " + std::to_string(shares.examples()) + ", d = " + std::to_string(dim);
  }
};

Shares random_shares(Dice& dice, std::size_t examples, std::size_t workers) {
  if (dice.roll(3) == 0) return Shares::strided(examples, workers);
  Orders shares(workers);
  const std::size_t favourite = dice.roll(workers);
  for (const Index i : random_permutation({dice.roll(1000), Purpose::kData, 0, 0}, examples))
    shares[dice.roll(4) == 0 ? favourite : dice.roll(workers)].push_back(i);
  if (dice.flip()) {
    auto& emptied = shares[dice.roll(workers)];
    auto& filled = shares[dice.roll(workers)];
    if (&emptied != &filled) {
      filled.insert(filled.end(), emptied.begin(), emptied.end());
      emptied.clear();
    }
  }
  return {examples, shares};
}

World random_world(std::uint64_t seed, std::size_t workers, const std::string& text) {
  Dice dice(20'000'000 + seed * 97 + workers);
  const std::size_t n = workers > 20 ? 60 + dice.roll(100) : dice.roll(12 * workers + 20);
  World world{random_shares(dice, n, workers), parse_spec(text), seed, 1 + dice.roll(40), {}, dice.flip()};
  world.rows = cases::integer_rows(dice, n, world.dim);
  if (!world.whole)
    for (std::size_t i = 0; i < n; ++i)
      if (dice.roll(10) == 0)
        world.rows[i * world.dim + dice.roll(world.dim)] =
            dice.flip() ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  return world;
}

struct Seen {
  Index position;
  OrderServer::Row x;
};

/// What a run did, epoch by epoch; `seen` by worker, in order of arrival.
struct Trace {
  std::vector<Orders> orders;
  std::vector<std::uint64_t> hashes;
  std::vector<std::vector<std::vector<Seen>>> seen;
};

Orders all_orders(const DistributedSampler& sampler) {
  Orders orders;
  for (std::size_t w = 0; w < sampler.workers(); ++w) orders.push_back(sampler.order(w));
  return orders;
}

/// The rows of these units of a worker, each named by an example.
std::vector<float> rows_of(const World& world, std::span<const Index> examples) {
  std::vector<float> batch;
  for (const Index example : examples) {
    const auto begin = world.rows.begin() + static_cast<std::ptrdiff_t>(example * world.dim);
    batch.insert(batch.end(), begin, begin + static_cast<std::ptrdiff_t>(world.dim));
  }
  return batch;
}

/// What one worker does next, as a function of itself alone: hands out, and observes what it likes of it.
/// False when its epoch is over.
class Trainer {
 public:
  Trainer(const World& world, std::size_t worker, std::uint64_t epoch)
      : kept_(world), worker_(worker), dice_(world.seed * 1009 + worker * 31 + epoch * 7) {}

  bool step(DistributedSampler& sampler, std::vector<Seen>* seen) {
    const World& world = kept_;
    const std::vector<Index> handed = sampler.next(worker_, 1 + dice_.roll(world.most));
    if (handed.empty() || (!world.whole && dice_.roll(12) == 0)) return false;
    if (world.whole && world.spec.unit == 1) {
      deposit(sampler, handed, seen, dice_.flip());
      return true;
    }
    const std::size_t count = sampler.outstanding(worker_);
    std::vector<Index> units;
    for (const Index example : sampler.oldest_outstanding(worker_, 0, count))
      if (world.whole || dice_.roll(5) != 0) units.push_back(example);
    if (!world.whole && dice_.flip()) std::reverse(units.begin(), units.end());
    deposit(sampler, units, seen, true);
    return true;
  }

 private:
  void deposit(DistributedSampler& sampler, const std::vector<Index>& units, std::vector<Seen>* seen,
               bool by_name) {
    const World& world = kept_;
    const std::vector<float> batch = rows_of(world, units);
    const Rows<float> rows{batch.data(), units.size(), world.dim};
    if (by_name)
      sampler.deposit(worker_, rows, units);
    else
      sampler.deposit(worker_, rows);
    if (seen == nullptr) return;
    const std::vector<Index> order = sampler.order(worker_);
    for (const Index example : units) {
      const auto at = std::find(order.begin(), order.end(), example) - order.begin();
      const auto row = rows_of(world, std::span(&example, 1));
      seen->push_back({static_cast<Index>(static_cast<std::size_t>(at) / world.spec.unit),
                       OrderServer::Row(row.begin(), row.end())});
    }
  }

  std::reference_wrapper<const World> kept_;
  std::size_t worker_;
  Dice dice_;
};

/// One epoch on one rank; how often it steps is the rank's own affair.
void train_epoch(const World& world, DistributedSampler& sampler, Dice& pace,
                 std::vector<std::vector<Seen>>* seen) {
  std::vector<std::pair<std::size_t, Trainer>> trainers;
  for (std::size_t h = 0; h < sampler.hosted(); ++h) {
    const std::size_t worker = sampler.first_worker() + h;
    trainers.emplace_back(worker, Trainer(world, worker, sampler.epoch()));
  }
  while (!trainers.empty()) {
    std::erase_if(trainers, [&](auto& entry) {
      return !entry.second.step(sampler, seen == nullptr ? nullptr : &(*seen)[entry.first]);
    });
    for (std::size_t k = pace.roll(3); k > 0; --k) sampler.step();
  }
  sampler.end_epoch();
}

Trace run(const World& world, std::size_t ranks, DistributedOptions options = {}) {
  Trace trace;
  trace.orders.resize(world.epochs + 1);
  trace.hashes.resize(world.epochs + 1);
  trace.seen.assign(world.epochs, std::vector<std::vector<Seen>>(world.workers()));
  options.seed = world.seed;
  run_on_threads(ranks, [&](Communicator& communicator) {
    communicator.set_timeout(std::chrono::seconds(20));
    DistributedSampler sampler(world.shares, world.spec, communicator, options);
    Dice pace(world.seed * 17 + communicator.rank());
    if (communicator.rank() == 0) trace.orders[0] = all_orders(sampler);
    for (std::uint64_t epoch = 0; epoch < world.epochs; ++epoch) {
      train_epoch(world, sampler, pace, &trace.seen[epoch]);
      const std::uint64_t own = sampler.order_hash();
      const auto hashes = communicator.all_gather(std::as_bytes(std::span(&own, 1)));
      for (const auto& hash : hashes) EXPECT_EQ(hash, hashes[0]) << world.name() << ", epoch " << epoch;
      if (communicator.rank() != 0) continue;
      trace.orders[epoch + 1] = all_orders(sampler);
      trace.hashes[epoch + 1] = sampler.order_hash();
    }
  });
  return trace;
}

std::size_t units_of(const World& world) {
  std::size_t units = 0;
  for (std::size_t w = 0; w < world.workers(); ++w)
    units += (world.shares.size(w) + world.spec.unit - 1) / world.spec.unit;
  return units;
}

void expect_order_server(const World& world, const Trace& trace, std::size_t ranks) {
  OrderServer server(world.workers(), world.spec.name == OrderName::kCoordinatedPair, world.spec.sign,
                     world.seed, units_of(world));
  for (std::uint64_t epoch = 0; epoch < world.epochs; ++epoch) {
    server.begin_epoch(epoch);
    for (std::size_t w = 0; w < world.workers(); ++w)
      for (const Seen& seen : trace.seen[epoch][w]) server.see(w, seen.position, seen.x);
    ASSERT_EQ(trace.orders[epoch + 1], server.next_orders(trace.orders[epoch]))
        << world.name() << ", " << ranks << " ranks, epoch " << epoch;
  }
}

TEST(Workers, OrdersEqualTheOrderServersOnAnyNumberOfRanks) {
  for (const std::size_t workers : {1UL, 2UL, 3UL, 4UL, 7UL, 64UL}) {
    for (std::uint64_t seed = 0; seed < 24; ++seed) {
      const char* texts[] = {"cd-pair", "cd-pair; tie=minus", "cd-pair; sign=walk,c=9",
                             "cd-pair; sign=halving"};
      const World world = random_world(seed, workers, texts[seed % 4]);
      const std::size_t ranks = 1 + (seed / 4 + seed) % 4;
      expect_order_server(world, run(world, ranks), ranks);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Workers, IndependentOrdersEqualTheOrderServerWithAnAccumulatorEach) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const World world =
        random_world(500 + seed, 1 + seed % 5, seed % 2 == 0 ? "id-pair" : "id-pair; tie=minus");
    const std::size_t ranks = 1 + seed / 2 % 4;
    expect_order_server(world, run(world, ranks), ranks);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace cdgrab
