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
#include <thread>

#include "cdgrab/cdgrab.hpp"
#include "oracle/order_server.hpp"
#include "property/cases.hpp"
#include "torture/at_length.hpp"

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
  std::uint64_t sent = 0;  ///< vectors, in bytes, by rank 0
};

/// Of every worker, in units of its share.
Orders all_orders(const DistributedSampler& sampler) {
  Orders orders(sampler.workers());
  const std::size_t unit = sampler.spec().unit;
  for (std::size_t w = 0; w < sampler.workers(); ++w)
    for (const Index example : sampler.order(w))
      if (const std::size_t local = sampler.shares().local(w, example).value(); local % unit == 0)
        orders[w].push_back(static_cast<Index>(local / unit));
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

/// Both ways to hold such short vectors: cut, and whole at rank 0.
DistributedOptions options_of(const World& world, DistributedOptions options = {}) {
  options.seed = world.seed;
  options.whole_up_to = (world.seed / 5 + world.workers()) % 2 == 0 ? 0 : 1024;
  return options;
}

Trace run(const World& world, std::size_t ranks, DistributedOptions options = {}) {
  Trace trace;
  trace.orders.resize(world.epochs + 1);
  trace.hashes.resize(world.epochs + 1);
  trace.seen.assign(world.epochs, std::vector<std::vector<Seen>>(world.workers()));
  options = options_of(world, std::move(options));
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
    if (communicator.rank() == 0) trace.sent = sampler.traffic(Verb::kAllToAll).sent;
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

TEST(Workers, UnitsOfSeveralExamplesEqualTheOrderServersButForAShortOneWhichIsLast) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    World world = random_world(700 + seed, 1 + seed % 4, "cd-pair; unit=3");
    const Trace trace = run(world, 1 + seed % 3);
    OrderServer server(world.workers(), true, world.spec.sign, world.seed, units_of(world));
    for (std::uint64_t epoch = 0; epoch < world.epochs; ++epoch) {
      server.begin_epoch(epoch);
      for (std::size_t w = 0; w < world.workers(); ++w)
        for (const Seen& seen : trace.seen[epoch][w]) server.see(w, seen.position, seen.x);
      Orders expected = server.next_orders(trace.orders[epoch]);
      for (std::size_t w = 0; w < world.workers(); ++w) {
        if (world.shares.size(w) % 3 == 0) continue;
        const auto last = static_cast<Index>(world.shares.size(w) / 3);
        std::erase(expected[w], last);
        expected[w].push_back(last);
      }
      ASSERT_EQ(trace.orders[epoch + 1], expected) << world.name() << ", epoch " << epoch;
    }
  }
}

/// The order of a plain sampler that is fed as the worker was.
std::vector<Orders> plain_orders(const World& world, const std::string& text, const Trace& trace) {
  std::vector<Orders> orders(world.epochs + 1, Orders(world.workers()));
  for (std::size_t w = 0; w < world.workers(); ++w) {
    Sampler sampler(world.shares.size(w), parse_spec(text), {.seed = worker_seed(world.seed, w)});
    for (std::uint64_t epoch = 0; epoch <= world.epochs; ++epoch) {
      orders[epoch][w].assign(sampler.order().begin(), sampler.order().end());
      if (epoch == world.epochs) break;
      sampler.next(world.shares.size(w));
      for (const Seen& seen : trace.seen[epoch][w]) {
        const std::vector<float> row(seen.x.begin(), seen.x.end());
        const Index name = static_cast<Index>(sampler.order()[seen.position] * world.spec.unit);
        sampler.observe(Rows<float>{row.data(), 1, row.size()}, std::span(&name, 1));
      }
      sampler.end_epoch();
    }
  }
  return orders;
}

TEST(Workers, OneWorkerIsPairBitForBitUnderEverySignRule) {
  const std::string options[] = {"",         "; tie=minus",        "; sign=walk,c=9", "; sign=halving",
                                 "; unit=2", "; unit=3; sign=walk"};
  for (const std::string& option : options) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const World world = random_world(900 + seed, 1, "cd-pair" + option);
      const Trace trace = run(world, 1 + seed % 3);
      ASSERT_EQ(trace.orders, plain_orders(world, "pair" + option, trace)) << world.name();
    }
  }
}

TEST(Workers, EachForItselfIsAPlainSamplerWithTheWorkersSeed) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (const std::string text : {"pair; sign=walk,c=9", "pair; sign=halving", "rr"}) {
      const World world = random_world(1100 + seed, 1 + seed % 5, text == "rr" ? "d-rr" : "id-" + text);
      const Trace trace = run(world, 1 + seed % 3);
      ASSERT_EQ(trace.orders, plain_orders(world, text, trace)) << world.name();
    }
  }
}

World real_world(std::uint64_t seed, std::size_t workers, const std::string& text) {
  World world = random_world(seed, workers, text);
  world.whole = true;
  for (std::size_t i = 0; i < world.rows.size(); ++i)
    world.rows[i] = static_cast<float>(normal({seed, Purpose::kData, 1, 0}, i));
  return world;
}

/// run() compares the hashes of all ranks after every epoch; and real numbers show where sums would differ.
TEST(Workers, AllRanksHoldTheSameOrdersWithRealNumbersToo) {
  for (const std::string text : {"cd-pair", "cd-pair; normalize", "cd-pair; sketch=gauss:3",
                                 "id-pair; normalize", "cd-pair; sketch=sparse:4; sign=walk,c=1"}) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      const World world = real_world(1300 + seed, 2 + seed, text);
      const Trace trace = run(world, 2 + seed % 3);
      for (const Orders& orders : trace.orders)
        for (const std::vector<Index>& order : orders) ASSERT_TRUE(is_permutation(order)) << world.name();
    }
  }
}

TEST(Workers, RoundsBehindTrainingGiveTheSameOrders) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const std::string text =
        seed % 4 == 3 ? "id-pair" : (seed % 4 == 2 ? "cd-pair; sign=halving" : "cd-pair");
    const World world = random_world(1500 + seed, 1 + seed % 7, text);
    const std::size_t ranks = 1 + seed % 4;
    const Trace expected = run(world, ranks);
    const Trace behind = run(world, ranks, {.overlap = true});
    ASSERT_EQ(behind.orders, expected.orders) << world.name();
    ASSERT_EQ(behind.hashes, expected.hashes) << world.name();
    ASSERT_EQ(behind.sent, expected.sent) << world.name();
  }
}

// ---- averaging

/// Every worker gives one vector per step until it has none left. The means, step by step, and the orders.
struct Averages {
  std::vector<std::vector<float>> means;
  std::vector<Orders> orders;
};

Averages run_averaging(const World& world, std::size_t ranks, bool average, DistributedOptions options = {}) {
  Averages result;
  options = options_of(world, std::move(options));
  run_on_threads(ranks, [&](Communicator& communicator) {
    communicator.set_timeout(std::chrono::seconds(20));
    DistributedSampler sampler(world.shares, world.spec, communicator, options);
    for (std::uint64_t epoch = 0; epoch < world.epochs; ++epoch) {
      std::size_t most = 0;
      for (std::size_t w = 0; w < world.workers(); ++w) most = std::max(most, world.shares.size(w));
      for (std::size_t step = 0; step < most; ++step) {
        std::vector<std::vector<float>> rows(sampler.hosted());
        std::vector<std::span<const float>> gradients(sampler.hosted());
        std::vector<double> weights(sampler.hosted());
        bool any = false;
        for (std::size_t h = 0; h < sampler.hosted(); ++h) {
          const std::size_t worker = sampler.first_worker() + h;
          const std::vector<Index> handed = sampler.next(worker, world.spec.unit);
          if (handed.empty()) continue;
          any = true;
          rows[h] = rows_of(world, std::span(handed).first(1));
          gradients[h] = rows[h];
          weights[h] = static_cast<double>(1 + (worker + step) % 3);
          if (!average) sampler.deposit(worker, Rows<float>{rows[h].data(), 1, world.dim});
        }
        // A rank that has nothing left goes to end_epoch(), and serves the others from there.
        if (!any && communicator.rank() != 0) break;
        std::vector<float> mean(world.dim, 5.0F);
        if (average)
          sampler.average<float>(gradients, weights, mean);
        else
          sampler.step();
        if (communicator.rank() == 0) result.means.push_back(mean);
      }
      sampler.end_epoch();
      if (communicator.rank() == 0) result.orders.push_back(all_orders(sampler));
    }
  });
  return result;
}

TEST(Workers, AMeanHasTheSameBitsOnAnyNumberOfRanks) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const std::string text =
        seed % 3 == 0 ? "d-rr" : (seed % 3 == 1 ? "cd-pair; unit=2" : "cd-pair; sketch=gauss:2");
    const World world = real_world(1700 + seed, 1 + seed, text);
    const Averages expected = run_averaging(world, 1, true);
    for (const std::size_t ranks : {2UL, 3UL, 4UL}) {
      // One sign that falls otherwise makes another order, and other means after it.
      const std::size_t first_epoch = std::min(expected.means.size(), expected.means.size() / world.epochs);
      const Averages found = run_averaging(world, ranks, true);
      ASSERT_EQ(found.means.size(), expected.means.size());
      for (std::size_t k = 0; k < first_epoch; ++k)
        ASSERT_EQ(found.means[k], expected.means[k]) << world.name();
    }
  }
}

TEST(Workers, AMeanIsTheWeightedSumOverTheWorkersInTheirOrder) {
  const World world{Shares::strided(3, 3), parse_spec("cd-pair"), 1, 2, {1, 2, 3, 4, 5, 7}, true, 1};
  const Averages found = run_averaging(world, 2, true);
  ASSERT_EQ(found.means.size(), 1U);
  EXPECT_EQ(found.means[0], (std::vector<float>{22.0F / 6.0F, 31.0F / 6.0F}));
}

TEST(Workers, AveragingGivesTheOrdersThatDepositsGive) {
  const std::string texts[] = {"cd-pair", "cd-pair; sign=halving", "cd-pair; unit=2; sign=walk,c=9",
                               "id-pair"};
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    World world = random_world(1900 + seed, 1 + seed % 7, texts[seed % 4]);
    for (std::size_t i = 0; i < world.rows.size(); ++i)
      if (!world.whole && seed % 2 == 0 && !std::isfinite(world.rows[i])) world.rows[i] = 1.0F;
    const Averages expected = run_averaging(world, 1, false);
    for (const std::size_t ranks : {1UL, 2UL, 4UL}) {
      ASSERT_EQ(run_averaging(world, ranks, false).orders, expected.orders) << world.name();
      ASSERT_EQ(run_averaging(world, ranks, true).orders, expected.orders) << world.name();
      ASSERT_EQ(run_averaging(world, ranks, true, {.overlap = true}).orders, expected.orders) << world.name();
    }
  }
}

// ---- states

/// Steps in which every worker does something that depends on itself, the epoch and the step alone.
constexpr std::size_t kSteps = 4;

void do_step(const World& world, DistributedSampler& sampler, std::size_t step, bool travels) {
  for (std::size_t h = 0; h < sampler.hosted(); ++h) {
    const std::size_t worker = sampler.first_worker() + h;
    Dice dice(world.seed + 1000 * worker + 100 * sampler.epoch() + step);
    const std::size_t size = world.shares.size(worker);
    const bool last = step + 1 == kSteps;
    sampler.next(worker, last ? size : dice.roll(size / 2 + 1));
    const std::size_t count = sampler.outstanding(worker);
    const std::size_t kept = last || count == 0 ? 0 : dice.roll(2);
    const std::vector<Index> units = sampler.oldest_outstanding(worker, kept, count - kept);
    const std::vector<float> batch = rows_of(world, units);
    sampler.deposit(worker, Rows<float>{batch.data(), units.size(), world.dim}, units);
  }
  if (travels) sampler.step();
}

/// Goes on from (epoch, step) to the end of the third epoch; the orders on the way.
std::vector<Orders> go_on(const World& world, DistributedSampler& sampler, std::size_t step) {
  std::vector<Orders> orders;
  while (sampler.epoch() < world.epochs) {
    for (; step < kSteps; ++step) do_step(world, sampler, step, true);
    sampler.end_epoch();
    orders.push_back(all_orders(sampler));
    step = 0;
  }
  return orders;
}

DistributedSampler make(const World& world, Communicator& communicator, bool overlap = false) {
  communicator.set_timeout(std::chrono::seconds(20));
  return {world.shares, world.spec, communicator, options_of(world, {.overlap = overlap})};
}

State through_bytes(const State& state) { return decode_state(encode_state(state), "test"); }

std::string differing_keys(const State& a, const State& b) {
  std::string keys;
  for (const auto& [key, value] : a.entries())
    if (!b.contains(key) || b.entries().find(key)->second != value) keys += key + " ";
  for (const auto& [key, value] : b.entries())
    if (!a.contains(key)) keys += key + " ";
  return keys;
}

struct Stopped {
  std::vector<State> states;  ///< by rank
  std::vector<Orders> orders;
};

/// Stops in the second epoch after so many steps, perhaps with deposits that have not travelled, and goes on.
Stopped stop(const World& world, std::size_t ranks, std::size_t steps, bool local, bool travels,
             bool overlap) {
  Stopped result;
  result.states.resize(ranks);
  run_on_threads(ranks, [&](Communicator& communicator) {
    DistributedSampler sampler = make(world, communicator, overlap);
    for (std::size_t step = 0; step < kSteps; ++step) do_step(world, sampler, step, true);
    sampler.end_epoch();
    for (std::size_t step = 0; step < steps; ++step)
      do_step(world, sampler, step, travels || step + 1 < steps);
    result.states[communicator.rank()] = through_bytes(local ? sampler.local_state() : sampler.save());
    if (!travels && steps > 0) sampler.step();
    const std::vector<Orders> orders = go_on(world, sampler, steps);
    if (communicator.rank() == 0) result.orders = orders;
  });
  return result;
}

TEST(Workers, ResumeEqualsNeverStoppingOnAnyNumberOfRanks) {
  const std::string texts[] = {"cd-pair", "cd-pair; sign=halving", "id-pair; sign=halving", "d-rr",
                               "cd-pair; unit=2"};
  const std::uint64_t runs = torture::at_length() ? 2000 : 20;
  for (std::uint64_t seed = 0; seed < runs; ++seed) {
    const World world = random_world(2100 + seed, 1 + seed % 6, texts[seed % 5]);
    const bool local = seed % 2 == 1;
    const std::size_t steps = seed % (kSteps + 1);
    const std::size_t ranks = 1 + seed % 3;
    const Stopped stopped = stop(world, ranks, steps, local, seed % 3 != 0, seed % 4 == 0);
    const std::size_t others = local ? ranks : 1 + (seed + 1) % 4;
    run_on_threads(others, [&](Communicator& communicator) {
      DistributedSampler sampler = make(world, communicator, seed % 4 == 1);
      const State& state = stopped.states[local ? communicator.rank() : 0];
      const LoadReport report = sampler.load(state);
      EXPECT_FALSE(report.reshared);
      EXPECT_EQ(report.text, "");
      if (local) {
        EXPECT_EQ(differing_keys(sampler.local_state(), state), "") << world.name();
      }
      if (local && steps > 0 && seed % 3 == 0) sampler.step();
      const std::vector<Orders> orders = go_on(world, sampler, steps);
      if (communicator.rank() == 0) {
        EXPECT_EQ(orders, stopped.orders) << world.name();
      }
    });
    if (HasFailure()) return;
  }
}

TEST(Workers, ASavedStateIsTheSameOnEveryRankAndForAnyNumberOfThem) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    World world = random_world(2300 + seed, 3, seed % 2 == 0 ? "cd-pair" : "id-pair");
    for (float& value : world.rows)
      if (!std::isfinite(value)) value = 2.0F;
    const State expected = stop(world, 1, 1 + seed % 3, false, true, false).states[0];
    for (const std::size_t ranks : {2UL, 4UL})
      for (const State& state : stop(world, ranks, 1 + seed % 3, false, true, false).states)
        ASSERT_EQ(differing_keys(state, expected), "") << world.name();
  }
}

TEST(Workers, ResumeInTheMiddleOfAveragingEqualsNeverStopping) {
  const std::size_t dim = 7;
  Dice dice(5);
  const World world{
      Shares::strided(23, 3), parse_spec("cd-pair"), 5, dim, cases::integer_rows(dice, 23, dim), true};
  const auto steps = [&](DistributedSampler& sampler, std::size_t count) {
    for (std::size_t step = 0; step < count; ++step) {
      std::vector<std::vector<float>> rows(sampler.hosted());
      std::vector<std::span<const float>> gradients;
      for (std::size_t h = 0; h < sampler.hosted(); ++h) {
        rows[h] = rows_of(world, sampler.next(sampler.first_worker() + h, 1));
        gradients.emplace_back(rows[h]);
      }
      std::vector<float> mean(dim);
      sampler.average<float>(gradients, std::vector<double>(sampler.hosted(), 1.0), mean);
    }
  };
  for (const bool local : {false, true}) {
    std::vector<State> states(2);
    Orders expected;
    run_on_threads(2, [&](Communicator& communicator) {
      DistributedSampler sampler = make(world, communicator);
      steps(sampler, 3);
      states[communicator.rank()] = through_bytes(local ? sampler.local_state() : sampler.save());
      steps(sampler, 5);
      sampler.end_epoch();
      if (communicator.rank() == 0) expected = all_orders(sampler);
    });
    run_on_threads(local ? 2 : 3, [&](Communicator& communicator) {
      DistributedSampler sampler = make(world, communicator);
      sampler.load(states[local ? communicator.rank() : 0]);
      steps(sampler, 5);
      sampler.end_epoch();
      EXPECT_EQ(all_orders(sampler), expected);
    });
  }
}

TEST(Workers, OtherWorkersVisitWhatRemainsExactlyOnce) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const std::string texts[] = {"cd-pair", "id-pair", "cd-pair; unit=3", "d-rr; unit=2"};
    const World world = random_world(2500 + seed, 1 + seed % 5, texts[seed % 4]);
    const std::size_t steps = seed / 4 % kSteps;
    std::vector<int> visits(world.shares.examples());
    State state;
    run_on_threads(2, [&](Communicator& communicator) {
      DistributedSampler sampler = make(world, communicator);
      for (std::size_t step = 0; step < steps; ++step) do_step(world, sampler, step, true);
      const State saved = sampler.save();
      for (std::size_t h = 0; h < sampler.hosted(); ++h) {
        const std::size_t worker = sampler.first_worker() + h;
        const std::vector<Index> order = sampler.order(worker);
        for (std::size_t k = 0; k < sampler.position(worker).handed_out; ++k) ++visits[order[k]];
      }
      if (communicator.rank() == 0) state = saved;
    });
    const auto before = static_cast<std::size_t>(std::count(visits.begin(), visits.end(), 1));
    Dice dice(seed);
    World other = world;
    other.shares = random_shares(dice, world.shares.examples(), 1 + (seed + 2) % 6);
    std::mutex mutex;
    run_on_threads(1 + seed % 3, [&](Communicator& communicator) {
      DistributedSampler sampler = make(other, communicator);
      const LoadReport report = sampler.load(state);
      EXPECT_EQ(report.reshared, !(other.shares == world.shares));
      EXPECT_EQ(report.text.empty(), !report.reshared);
      EXPECT_EQ(report.visited, before);
      EXPECT_EQ(report.visited + report.remaining, world.shares.examples());
      sampler.begin();
      for (std::size_t h = 0; h < sampler.hosted(); ++h) {
        const std::size_t worker = sampler.first_worker() + h;
        const std::vector<Index> soon = sampler.upcoming(worker, 2);
        EXPECT_EQ(sampler.next(worker, 2), soon);
        for (const Index example : soon) {
          const std::scoped_lock lock(mutex);
          ++visits[example];
        }
        sampler.load(through_bytes(sampler.local_state()));
        for (std::vector<Index> handed; !(handed = sampler.next(worker, 5)).empty();) {
          const std::scoped_lock lock(mutex);
          for (const Index example : handed) ++visits[example];
        }
        const std::vector<Index> units = sampler.oldest_outstanding(worker, 0, sampler.outstanding(worker));
        const std::vector<float> batch = rows_of(other, units);
        sampler.deposit(worker, Rows<float>{batch.data(), units.size(), other.dim}, units);
      }
      sampler.end_epoch();
      for (const std::vector<Index>& order : all_orders(sampler)) EXPECT_TRUE(is_permutation(order));
      EXPECT_EQ(sampler.epoch(), 1U);
    });
    EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), static_cast<std::ptrdiff_t>(visits.size()))
        << world.name();
    if (HasFailure()) return;
  }
}

TEST(Workers, AStateOfOtherArgumentsIsRefusedAndNamesTheWholeKey) {
  SelfCommunicator self;
  const World world{Shares::strided(9, 2), parse_spec("cd-pair; sign=halving"), 5, 3,
                    std::vector<float>(27, 1.0F)};
  DistributedSampler sampler = make(world, self);
  do_step(world, sampler, 0, true);
  const State state = sampler.save();
  const auto refusal = [&](const State& wrong) -> std::string {
    try {
      sampler.load(wrong);
    } catch (const StateMismatch& error) {
      EXPECT_EQ(differing_keys(sampler.save(), state), "step ");
      return error.what();
    }
    return "accepted";
  };
  const auto without = [&](std::string_view key) {
    State less;
    for (const auto& [name, value] : state.entries())
      if (name != key) std::visit([&, &n = name](const auto& v) { less.set(n, v); }, value);
    return less;
  };
  for (const char* key : {"worker.1.codes", "worker.1.order.current", "worker.0.waiting", "lanes.to_come",
                          "accumulator", "sign.tau", "workers"})
    EXPECT_NE(refusal(without(key)).find(key), std::string::npos) << key << ": " << refusal(without(key));
  State wrong = state;
  wrong.set("worker.1.order.current", std::span<const Index>(std::vector<Index>{0, 0, 1, 2}));
  EXPECT_NE(refusal(wrong).find("'worker.1.order.current' is not an order"), std::string::npos);
  wrong = state;
  wrong.set("examples", std::int64_t{10});
  EXPECT_NE(refusal(wrong).find("'examples' is '10'"), std::string::npos);
  wrong = sampler.local_state();
  wrong.set("ranks", std::int64_t{2});
  EXPECT_NE(refusal(wrong).find("the same rank of as many"), std::string::npos);
}

// ---- refusals and faults

/// What each rank threw; nothing is left unsaid for longer than a few timeouts.
std::vector<std::string> failures(std::size_t ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::string> what(ranks, "nothing");
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_on_threads(ranks, [&](Communicator& communicator) {
      communicator.set_timeout(std::chrono::milliseconds(300));
      try {
        body(communicator);
      } catch (const CommunicationError& error) {
        what[communicator.rank()] = std::string("communication: ") + error.what();
        throw;
      } catch (const std::exception& error) {
        what[communicator.rank()] = error.what();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  return what;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

struct Fault {
  std::string name;
  std::function<void(const World&, DistributedSampler&)> strike;  ///< on rank 1, in place of step 2
  std::string said;                                               ///< by every rank that is left
};

TEST(Workers, AFaultOfOneRankStopsAllWithTheStepAndTheRank) {
  Dice dice(3);
  const World world{Shares::strided(60, 3), parse_spec("cd-pair"), 3, 5, cases::integer_rows(dice, 60, 5)};
  const Fault faults[] = {
      {"throws", [](const World&, DistributedSampler&) { throw std::runtime_error("rank 1 fell"); },
       "rank 1"},
      {"saves", [](const World&, DistributedSampler& s) { static_cast<void>(s.save()); },
       "rank 1 saves while rank 0 steps"},
      {"is slow",
       [](const World&, DistributedSampler&) { std::this_thread::sleep_for(std::chrono::milliseconds(700)); },
       "rank 1"},
      {"averages",
       [](const World&, DistributedSampler& s) {
         const std::vector<std::span<const float>> none(s.hosted());
         std::vector<float> mean(5);
         s.average<float>(none, std::vector<double>(s.hosted()), mean);
       },
       "rank 1 averages while rank 0 steps"},
      {"is ahead",
       [](const World& w, DistributedSampler& s) {
         State state = s.local_state();
         state.set("step", std::int64_t{7});
         s.load(state);
         do_step(w, s, 1, true);
       },
       "the step is 7 on rank 1 and 2 on rank 0"},
  };
  for (const bool overlap : {false, true}) {
    for (const Fault& fault : faults) {
      const auto what = failures(3, [&](Communicator& communicator) {
        DistributedSampler sampler(world.shares, world.spec, communicator, {.seed = 3, .overlap = overlap});
        for (std::size_t step = 0; step < 3; ++step) {
          if (step == 2 && communicator.rank() == 1)
            fault.strike(world, sampler);
          else
            do_step(world, sampler, step, true);
        }
        sampler.end_epoch();
      });
      for (const std::size_t rank : {0UL, 2UL}) {
        EXPECT_TRUE(has(what[rank], "communication: ")) << fault.name << ": " << what[rank];
        // Who is gone may be noticed by one rank while another still wakes from the round before.
        const std::string at = ", on rank " + std::to_string(rank) + " of 3";
        EXPECT_TRUE(has(what[rank], "epoch 0, step 2" + at) || has(what[rank], "epoch 0, step 1" + at))
            << fault.name << ": " << what[rank];
        EXPECT_TRUE(has(what[rank], fault.said)) << fault.name << ": " << what[rank];
      }
    }
  }
}

TEST(Workers, RanksThatWereMadeDifferentlyAreToldSoInTheFirstRound) {
  const auto made = [](std::uint64_t seed, const char* spec, std::size_t n, std::size_t dim) {
    return failures(2, [=](Communicator& communicator) {
      const bool odd = communicator.rank() == 1;
      const std::vector<float> row(16);
      DistributedSampler sampler(Shares::strided(odd ? n : 8, 2), parse_spec(odd ? spec : "cd-pair"),
                                 communicator, {.seed = odd ? seed : 1});
      sampler.next(sampler.first_worker(), 1);
      sampler.deposit(sampler.first_worker(), Rows<float>{row.data(), 1, odd ? dim : 4});
      sampler.step();
    });
  };
  for (const auto& what : {made(2, "cd-pair", 8, 4), made(1, "id-pair", 8, 4), made(1, "cd-pair", 9, 4)})
    for (const std::string& text : what) EXPECT_TRUE(has(text, "rank 1 was made with other")) << text;
  for (const std::string& text : made(1, "cd-pair", 8, 5))
    EXPECT_TRUE(has(text, "rank 1 have 5 numbers of 4 bytes, those of rank 0 have 4")) << text;
  EXPECT_EQ(made(1, "cd-pair", 8, 4), std::vector<std::string>(2, "nothing"));
}

TEST(Workers, MoreThanMayBeHeldIsRefusedOnAllRanks) {
  const std::vector<float> rows(10 * 8);
  const auto what = failures(2, [&](Communicator& communicator) {
    DistributedSampler sampler(Shares::strided(40, 2), parse_spec("cd-pair"), communicator,
                               {.hold_limit = 100, .whole_up_to = 0});
    for (std::size_t step = 0; step < 2; ++step) {
      // Worker 1 lags behind, and its pairs are waited for: 5 pairs of 4 numbers each are 80 bytes a step.
      if (communicator.rank() == 0) {
        sampler.next(0, 10);
        sampler.deposit(0, Rows<float>{rows.data(), 10, 8});
      }
      sampler.step();
      EXPECT_EQ(sampler.held_peak(), 80U);
    }
  });
  for (const std::string& text : what) {
    EXPECT_TRUE(has(text, "step 1: rank 0 would hold 160 bytes")) << text;
    EXPECT_TRUE(has(text, "hold_limit allows 100")) << text;
  }
}

TEST(Workers, WhatMakesNoSenseIsRefusedAndChangesNothing) {
  SelfCommunicator self;
  EXPECT_THROW(Sampler(4, parse_spec("cd-pair")), UserError);
  EXPECT_THROW(DistributedSampler(Shares::strided(4, 1), parse_spec("pair"), self), UserError);
  EXPECT_THROW(Shares::strided(4, 0), UserError);
  EXPECT_THROW(Shares(4, {{0, 1}, {2}}), UserError);
  EXPECT_THROW(Shares(4, {{0, 1}, {1, 2, 3}}), UserError);
  EXPECT_THROW(Shares(2, {{0, 5}}), UserError);

  DistributedSampler sampler(Shares::strided(8, 2), parse_spec("cd-pair"), self);
  const std::vector<float> row(4, 1.0F);
  const Rows<float> one{row.data(), 1, 4};
  EXPECT_THROW(sampler.deposit(0, one), UserError);
  const std::vector<Index> handed = sampler.next(0, 2);
  EXPECT_THROW(sampler.deposit(2, one), UserError);
  EXPECT_THROW(sampler.deposit(1, one, std::span(handed).first(1)), UserError);
  EXPECT_THROW(sampler.deposit(0, one, std::vector<Index>{1}), UserError);
  sampler.deposit(0, one, std::span(handed).first(1));
  try {
    sampler.deposit(0, one, std::span(handed).first(1));
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_TRUE(has(error.what(), "example " + std::to_string(handed[0]) + " was observed before"))
        << error.what();
  }
  EXPECT_THROW(sampler.deposit(0, Rows<float>{row.data(), 1, 3}), UserError);
  const std::vector<double> wide(4);
  EXPECT_THROW(sampler.deposit(0, Rows<double>{wide.data(), 1, 4}), UserError);
  std::vector<float> mean(4);
  const std::vector<std::span<const float>> gradients = {row, {}};
  EXPECT_THROW(sampler.average<float>(gradients, std::vector<double>{1, 0}, mean), UserError);
  EXPECT_EQ(sampler.outstanding(0), 1U);
  sampler.deposit(0, one);
  sampler.end_epoch();
  sampler.next(0, 1);
  sampler.average<float>(gradients, std::vector<double>{1, 0}, mean);
  EXPECT_EQ(mean, row);
  EXPECT_EQ(sampler.last_report(0).observed, 2U);
  EXPECT_EQ(sampler.last_report(0).unpaired, 0U);
  EXPECT_EQ(sampler.report(0).unpaired, 1U);
}

TEST(Workers, BeginStartsOverUntilSomethingWasObserved) {
  SelfCommunicator self;
  DistributedSampler sampler(Shares::strided(8, 2), parse_spec("cd-pair"), self);
  sampler.begin();
  const std::vector<Index> first = sampler.next(0, 2);
  sampler.begin();
  EXPECT_EQ(sampler.next(0, 2), first);
  EXPECT_EQ(sampler.epoch(), 0U);
  const std::vector<float> rows(8);
  sampler.deposit(0, Rows<float>{rows.data(), 2, 4});
  EXPECT_EQ(sampler.trained_position(0).handed_out, 2U);
  sampler.begin();
  EXPECT_EQ(sampler.epoch(), 1U);
  sampler.next(0, 4);
  sampler.next(1, 4);
  sampler.begin();
  EXPECT_EQ(sampler.epoch(), 2U);
  sampler.seek(0, {2, 3});
  sampler.begin();
  EXPECT_EQ(sampler.next(0, 4), std::vector<Index>{sampler.order(0)[3]});
}

/// A geometry from outside is used as the sampler's own is.
TEST(Workers, AGeometryPassedInGivesTheSameOrders) {
  Dice dice(11);
  const World world{Shares::strided(30, 4), parse_spec("cd-pair"), 11, 6, cases::integer_rows(dice, 30, 6)};
  for (const bool outside : {false, true}) {
    static Orders expected;
    run_on_threads(2, [&](Communicator& communicator) {
      communicator.set_timeout(std::chrono::seconds(20));
      SlicedGeometry geometry;
      if (outside) {
        geometry.sender = std::make_unique<DenseSliceSender<float>>(6, 2);
        geometry.holder = std::make_unique<DenseSliceHolder<float>>(6, communicator.rank(), 2);
      }
      DistributedSampler sampler(world.shares, world.spec, communicator, {.seed = 11}, std::move(geometry));
      for (int epoch = 0; epoch < 2; ++epoch) {
        for (std::size_t h = 0; h < 2; ++h) {
          const std::size_t worker = sampler.first_worker() + h;
          const std::vector<Index> handed = sampler.next(worker, 30);
          const std::vector<float> batch = rows_of(world, handed);
          if (outside) {
            dynamic_cast<DenseSliceSender<float>&>(*sampler.sender()).set_block(batch.data(), handed.size());
            sampler.deposit_block(worker);
          } else {
            sampler.deposit(worker, Rows<float>{batch.data(), handed.size(), 6});
          }
          const State saved = sampler.local_state();
          sampler.load(saved);
          EXPECT_EQ(differing_keys(sampler.local_state(), saved), "");
        }
        sampler.end_epoch();
      }
      if (communicator.rank() == 0 && !outside) expected = all_orders(sampler);
      if (outside) {
        EXPECT_EQ(all_orders(sampler), expected);
      }
    });
  }
}

// ---- faults and passes that a reviewer found

/// Forwards to another communicator; an exchange of its own choice finds nobody.
class Failing final : public Communicator {
 public:
  Failing(std::unique_ptr<Communicator> inner, int at) : inner_(std::move(inner)), at_(at) {}
  [[nodiscard]] std::size_t rank() const override { return inner_->rank(); }
  [[nodiscard]] std::size_t ranks() const override { return inner_->ranks(); }
  [[nodiscard]] std::unique_ptr<Communicator> duplicate() override {
    return std::make_unique<Failing>(inner_->duplicate(), at_);
  }

 protected:
  void exchange(std::span<const Sent> send, std::span<const Received> receive) override {
    if (++made_ == at_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the next job is there by then
      throw CommunicationError("test", "nobody came");
    }
    inner_->all_to_all(send, receive);
  }

 private:
  std::unique_ptr<Communicator> inner_;
  int at_;
  int made_ = 0;
};

/// The mean is written before the signs fall; what fails in between must reach who waits for the next mean.
TEST(Workers, ARoundOfAveragingThatFailsBehindTrainingStopsTheNextOne) {
  for (int at = 1; at <= 12; ++at) {
    auto ranks = ThreadCommunicator::make(2);
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        Failing communicator(std::move(ranks[r]), at);
        const auto train = [&] {
          DistributedOptions options;
          options.overlap = true;
          options.whole_up_to = 0;
          DistributedSampler sampler(Shares::strided(16, 2), parse_spec("cd-pair"), communicator, options);
          for (int step = 0; step < 8; ++step) {
            static_cast<void>(sampler.next(r, 1));
            const std::vector<float> gradient(4, static_cast<float>(step));
            std::vector<float> mean(4);
            const std::span<const float> row = gradient;
            const double weight = 1.0;
            sampler.average<float>(std::span(&row, 1), std::span(&weight, 1), mean);
          }
          sampler.end_epoch();
        };
        EXPECT_THROW(train(), CommunicationError) << at;
      });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Workers, ARankWithNothingLeftEndsTheEpochOfALoadedStateWithTheOthers) {
  for (const Shares& shares :
       {Shares(12, {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {10, 11}}), Shares::strided(12, 1)}) {
    const auto pass = [](DistributedSampler& sampler, std::size_t steps) {
      sampler.begin();
      for (bool any = true; any && steps > 0; --steps) {
        any = false;
        for (std::size_t h = 0; h < sampler.hosted(); ++h) {
          const std::size_t worker = sampler.first_worker() + h;
          const std::vector<Index> batch = sampler.next(worker, 2);
          if (batch.empty()) continue;
          any = true;
          std::vector<float> rows;
          for (const Index i : batch) rows.insert(rows.end(), {static_cast<float>(i), 1.0F});
          sampler.deposit(worker, Rows<float>{rows.data(), batch.size(), 2});
        }
        if (any) sampler.step();
      }
    };
    State saved;
    run_on_threads(2, [&](Communicator& communicator) {
      DistributedSampler sampler(shares, parse_spec("cd-pair"), communicator);
      pass(sampler, 2);
      while (sampler.steps() < 2) sampler.step();
      const State state = sampler.save();
      if (communicator.rank() == 0) saved = state;
    });
    run_on_threads(2, [&](Communicator& communicator) {
      communicator.set_timeout(std::chrono::seconds(5));
      DistributedSampler sampler(shares, parse_spec("cd-pair"), communicator);
      sampler.load(saved);
      for (int k = 0; k < 3; ++k) pass(sampler, 100);
      sampler.end_epoch();
      EXPECT_EQ(sampler.epoch(), 3U);
    });
  }
}

TEST(Workers, WhatOthersVisitedAndNeverObservedIsNotOutstanding) {
  SelfCommunicator alone;
  DistributedSampler before(Shares::strided(12, 2), parse_spec("cd-pair"), alone);
  before.begin();
  for (std::size_t worker = 0; worker < 2; ++worker) static_cast<void>(before.next(worker, 3));
  DistributedSampler after(Shares::strided(12, 3), parse_spec("cd-pair"), alone);
  after.load(before.save());
  std::size_t handed = 0;
  for (std::size_t worker = 0; worker < 3; ++worker) {
    EXPECT_EQ(after.outstanding(worker), 0U);
    const std::vector<Index> batch = after.next(worker, 2);
    EXPECT_EQ(after.outstanding(worker), batch.size());
    EXPECT_EQ(after.oldest_outstanding(worker, 0, batch.size()), batch);
    handed += batch.size();
  }
  EXPECT_GT(handed, 0U);
}

}  // namespace
}  // namespace cdgrab
