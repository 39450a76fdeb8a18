// SPDX-License-Identifier: Apache-2.0
// Many workers that observe losses, on ranks that are threads, against the rows of one example at a time. All
// numbers are integers, so every sum has one value and orders must be equal, not close.
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <numeric>
#include <sstream>

#include "cdgrab/error.hpp"
#include "cdgrab/self_communicator.hpp"
#include "cdgrab/thread_communicator.hpp"
#include "cdgrab/torch/distributed_sampler.hpp"

namespace cdgrab::torch {
namespace {

using at::Tensor;

/// Parameters, one example per row of x, and a loss that is the sum over the examples.
struct Model {
  std::vector<Tensor> parameters;
  Tensor x;
  std::function<Tensor(const std::vector<Tensor>&, const Tensor&)> sum;

  /// The same numbers in tensors of its own: a rank's.
  [[nodiscard]] Model copy() const {
    Model out = *this;
    for (Tensor& p : out.parameters) p = p.detach().clone().requires_grad_();
    return out;
  }
  [[nodiscard]] Tensor loss(const std::vector<std::size_t>& examples) const {
    const Tensor index = at::tensor(std::vector<std::int64_t>(examples.begin(), examples.end()), at::kLong);
    return sum(parameters, x.index_select(0, index));
  }
  /// (n, d).
  [[nodiscard]] Tensor rows() const {
    const Model own = copy();
    std::vector<Tensor> rows;
    for (std::size_t i = 0; i < static_cast<std::size_t>(x.size(0)); ++i) {
      const auto gradients = ::torch::autograd::grad({own.loss({i})}, own.parameters, {}, false, false, true);
      std::vector<Tensor> row;
      for (std::size_t p = 0; p < gradients.size(); ++p)
        row.push_back(gradients[p].defined() ? gradients[p].reshape({-1})
                                             : at::zeros({own.parameters[p].numel()}));
      rows.push_back(at::cat(row).to(at::kDouble));
    }
    return at::stack(rows);
  }
};

/// Integers of -most..most, mostly zeros.
Tensor integers(std::vector<std::int64_t> shape, std::int64_t most, at::ScalarType dtype) {
  const Tensor values = at::randint(-most, most + 1, shape, at::kLong);
  return (values * at::randint(0, 3, shape, at::kLong).eq(0)).to(dtype);
}

/// Two matrices that are worth being sent as factors, one cut by rows and one by columns, and small biases.
Model mlp(std::int64_t n, at::ScalarType dtype = at::kDouble) {
  ::torch::manual_seed(5);
  return {{integers({80, 60}, 1, dtype), integers({80}, 2, dtype), integers({60, 80}, 1, dtype),
           integers({60}, 2, dtype)},
          integers({n, 60}, 2, dtype),
          [](const std::vector<Tensor>& p, const Tensor& x) {
            const Tensor hidden = at::relu(at::linear(x, p[0], p[1]));
            return (at::linear(hidden, p[2], p[3]) * x).sum();
          }};
}

/// Every example is a sequence: as factors a pair would be larger than its difference.
Model sequences(std::int64_t n) {
  ::torch::manual_seed(6);
  return {
      {integers({70, 65}, 1, at::kDouble), integers({70}, 1, at::kDouble)},
      integers({n, 40, 65}, 1, at::kDouble),
      [](const std::vector<Tensor>& p, const Tensor& x) { return at::linear(x, p[0], p[1]).square().sum(); }};
}

/// Two tables of which each example takes four rows, cut by rows and by columns; one is used twice.
Model lookups(std::int64_t n) {
  ::torch::manual_seed(7);
  return {{integers({150, 30}, 2, at::kDouble), integers({40, 150}, 2, at::kDouble)},
          at::randint(0, 40, {n, 4}, at::kLong),
          [](const std::vector<Tensor>& p, const Tensor& x) {
            const Tensor a = at::embedding(p[0], x * 3 + 1);
            const Tensor b = at::embedding(p[1], x);
            const Tensor tied = at::linear(a.sum(1), p[0]);
            return tied.square().sum() + b.sum(1).square().sum();
          }};
}

/// Few positions and many channels: factors, of which one is kept in a smaller form.
Model convolution(std::int64_t n) {
  ::torch::manual_seed(9);
  return {
      {integers({24, 24, 3, 3}, 1, at::kDouble), integers({24}, 1, at::kDouble)},
      integers({n, 24, 4, 4}, 1, at::kDouble),
      [](const std::vector<Tensor>& p, const Tensor& x) { return at::conv2d(x, p[0], p[1]).square().sum(); }};
}

/// Which matrix is used depends on the example.
Model branches(std::int64_t n) {
  ::torch::manual_seed(8);
  Model model = {{integers({70, 65}, 1, at::kDouble), integers({72, 65}, 1, at::kDouble)},
                 integers({n, 65}, 1, at::kDouble),
                 [](const std::vector<Tensor>& p, const Tensor& x) {
                   const Tensor second = x.select(1, 0).gt(0);
                   Tensor loss;
                   for (int k = 0; k < 2; ++k) {
                     if (!second.eq(k == 1).all().item<bool>()) continue;
                     const Tensor one = at::linear(x, p[static_cast<std::size_t>(k)]).square().sum();
                     loss = loss.defined() ? loss + one : one;
                   }
                   return loss;
                 }};
  model.x.select(1, 0) = at::arange(n).remainder(2).to(at::kDouble);
  return model;
}

using Orders = std::vector<std::vector<std::vector<Index>>>;  ///< by epoch and worker

std::vector<std::vector<Index>> orders_of(const cdgrab::DistributedSampler& sampler) {
  std::vector<std::vector<Index>> orders;
  for (std::size_t w = 0; w < sampler.workers(); ++w) orders.push_back(sampler.order(w));
  return orders;
}

std::shared_ptr<Communicator> borrowed(Communicator& communicator) {
  return {&communicator, [](Communicator*) {}};
}

struct Scenario {
  std::string spec = "cd-pair";
  Shares shares = Shares::strided(1, 1);
  std::size_t batch = 6;
  int epochs = 2;
  bool named = false;      ///< the parameters are
  bool by_itself = false;  ///< step_after_backward
  bool overlap = false;
};

DistributedSampler make(const Scenario& run, Communicator& communicator) {
  DistributedSampler sampler(run.shares, run.spec, borrowed(communicator),
                             {.seed = 3, .overlap = run.overlap});
  sampler.step_after_backward(run.by_itself);
  return sampler;
}

constexpr std::size_t kNobody = 99;

/// One batch of each hosted worker that has one, and is not the one that pauses; false if none has.
bool observe_step(DistributedSampler& sampler, const Model& model, const Scenario& run,
                  std::size_t pauses = kNobody) {
  ObserveOptions options{.sum = true, .batch_axis = 0};
  if (run.named) {
    std::vector<std::pair<std::string, Tensor>> names;
    for (std::size_t p = 0; p < model.parameters.size(); ++p)
      names.emplace_back("p" + std::to_string(p), model.parameters[p]);
    options.parameters = ParameterSet(names);
  }
  bool any = false;
  const std::size_t first = sampler.core().first_worker();
  for (std::size_t w = first; w < first + sampler.core().hosted(); ++w) {
    if (w == pauses) {
      any = true;
      continue;
    }
    const auto examples = sampler.next(w, run.batch);
    if (examples.empty()) continue;
    any = true;
    const Tensor loss = model.loss(examples);
    sampler.observe(loss, static_cast<std::int64_t>(examples.size()), options, w);
    loss.backward();
  }
  return any;
}

/// The orders of all epochs after the first, as rank 0 has them; all ranks must agree.
Orders observed(const Scenario& run, const Model& model, std::size_t ranks,
                const std::function<void(Communicator&)>& after = {}) {
  Orders orders;
  run_on_threads(ranks, [&](Communicator& communicator) {
    const Model own = model.copy();
    DistributedSampler sampler = make(run, communicator);
    Orders mine;
    for (int epoch = 0; epoch < run.epochs; ++epoch) {
      sampler.begin();
      while (observe_step(sampler, own, run))
        if (!run.by_itself) sampler.step();
      sampler.end_epoch();
      mine.push_back(orders_of(sampler.core()));
    }
    if (after) after(communicator);
    if (communicator.rank() == 0) orders = mine;
  });
  return orders;
}

/// The same by a sampler that knows no torch, with rows in memory.
Orders deposited(const Scenario& run, const Tensor& rows) {
  SelfCommunicator self;
  cdgrab::DistributedSampler sampler(run.shares, parse_spec(run.spec), self, {.seed = 3});
  Orders orders;
  for (int epoch = 0; epoch < run.epochs; ++epoch) {
    sampler.begin();
    for (bool any = true; any;) {
      any = false;
      for (std::size_t w = 0; w < sampler.workers(); ++w) {
        const auto examples = sampler.next(w, run.batch);
        if (examples.empty()) continue;
        any = true;
        const std::vector<std::int64_t> index(examples.begin(), examples.end());
        const Tensor batch = rows.index_select(0, at::tensor(index, at::kLong)).contiguous();
        sampler.deposit(w, Rows<double>{batch.const_data_ptr<double>(), examples.size(),
                                        static_cast<std::size_t>(batch.size(1))});
      }
      sampler.step();
    }
    sampler.end_epoch();
    orders.push_back(orders_of(sampler));
  }
  return orders;
}

struct Named {
  const char* name;
  Model model;
};

std::vector<Named> all_models(std::int64_t n) {
  return {{"mlp", mlp(n)},
          {"mlp in float32", mlp(n, at::kFloat)},
          {"sequences", sequences(n)},
          {"lookups", lookups(n)},
          {"convolution", convolution(n)}};
}

/// 43 examples in batches of 6: last batches are short, of one example with one worker.
TEST(TorchWorkers, LossesGiveTheOrderOfRowsOnAnyNumberOfRanks) {
  for (const auto& [name, model] : all_models(43)) {
    const Tensor rows = model.rows();
    for (const std::size_t workers : {1, 2, 4}) {
      const Scenario run{.shares = Shares::strided(43, workers)};
      const Orders expected = deposited(run, rows);
      for (const std::size_t ranks : {1, 2, 3})
        EXPECT_EQ(observed(run, model, ranks), expected)
            << name << ", " << workers << " workers, " << ranks << " ranks";
    }
  }
}

/// Odd batches leave a carry behind in every step; a worker with little runs out and is not waited for.
TEST(TorchWorkers, OddBatchesAndAWorkerThatRunsOut) {
  std::vector<std::vector<Index>> shares(3);
  for (Index i = 0; i < 40; ++i) shares[i < 7 ? 1 : i % 3 == 0 ? 0 : 2].push_back(i);
  const Model model = mlp(40);
  const Tensor rows = model.rows();
  for (const char* spec : {"cd-pair", "cd-pair; sign=walk", "cd-pair; sign=halving", "id-pair", "d-rr"}) {
    const Scenario run{.spec = spec, .shares = Shares(40, shares), .batch = 5};
    const Orders expected = deposited(run, rows);
    for (const std::size_t ranks : {1, 3}) EXPECT_EQ(observed(run, model, ranks), expected) << spec;
  }
}

TEST(TorchWorkers, RoundsAfterEveryBackwardAndRoundsBehindAreTheSame) {
  const Model model = mlp(31);
  const Scenario by_hand{.shares = Shares::strided(31, 3)};
  const Orders expected = observed(by_hand, model, 3);
  for (const std::size_t ranks : {2, 3}) {
    Scenario other = by_hand;
    other.by_itself = true;
    EXPECT_EQ(observed(other, model, ranks), expected);
    other.overlap = true;
    EXPECT_EQ(observed(other, model, ranks), expected);
  }
}

/// Bytes that a rank of two sends of its own vectors, per pair and number of a row.
double bytes_per_number(const Model& model) {
  const std::int64_t n = 48;
  double sent = 0.0;
  observed({.shares = Shares::strided(static_cast<std::size_t>(n), 2), .epochs = 1}, model, 2,
           [&](Communicator& communicator) {
             if (communicator.rank() == 0)
               sent = static_cast<double>(communicator.traffic(Verb::kAllToAll).sent);
           });
  std::int64_t dim = 0;
  for (const Tensor& p : model.parameters) dim += p.numel();
  return sent / (static_cast<double>(n / 4) * static_cast<double>(dim));
}

/// Half a float64 number of each difference goes to the other rank, if rows are sent. A matrix of 80 x 60 has
/// as factors of two examples 2 * (60 + 40) of its 2400 numbers.
TEST(TorchWorkers, FactorsTravelWhereTheyAreLessAndElseSlices) {
  EXPECT_NEAR(bytes_per_number(sequences(48)), 4.0, 0.1);
  const double factors = bytes_per_number(mlp(48));
  EXPECT_NEAR(factors, 8.0 * (2.0 * (200.0 + 70.0 / 2.0)) / (2.0 * 4800.0 + 140.0), 0.1);
  EXPECT_LT(bytes_per_number(lookups(48)), 2.0);
  EXPECT_LT(bytes_per_number(convolution(48)), 2.0);
}

/// Saves in the middle of the second epoch; every rank of every number of ranks must have the same bytes.
std::vector<std::byte> saved(const Scenario& run, const Model& model, std::size_t ranks, Orders& orders) {
  std::vector<std::byte> bytes;
  std::mutex mutex;
  run_on_threads(ranks, [&](Communicator& communicator) {
    const Model own = model.copy();
    DistributedSampler sampler = make(run, communicator);
    State state;
    for (int epoch = 0; epoch < 2; ++epoch) {
      sampler.begin();
      for (int step = 0; observe_step(sampler, own, run, epoch == 1 && step < 2 ? 1 : kNobody); ++step) {
        sampler.step();
        if (epoch == 1 && step == 1) state = sampler.save_state();
      }
      if (epoch == 1 && sampler.core().hosted() == 0) state = sampler.save_state();
      sampler.end_epoch();
    }
    const std::scoped_lock lock(mutex);
    if (bytes.empty()) bytes = encode_state(state);
    EXPECT_EQ(bytes, encode_state(state));
    if (communicator.rank() == 0) orders = {orders_of(sampler.core())};
  });
  return bytes;
}

Orders resumed(const Scenario& run, const Model& model, std::size_t ranks,
               const std::vector<std::byte>& bytes) {
  Orders orders;
  run_on_threads(ranks, [&](Communicator& communicator) {
    const Model own = model.copy();
    DistributedSampler sampler = make(run, communicator);
    sampler.load_state(decode_state(bytes, "test"));
    sampler.begin();
    while (observe_step(sampler, own, run)) sampler.step();
    sampler.end_epoch();
    if (communicator.rank() == 0) orders = {orders_of(sampler.core())};
  });
  return orders;
}

/// Batches of three: every worker has a carry. Worker 1 pauses before, so that pairs of the others wait.
TEST(TorchWorkers, ASavedStateIsTheSameForAllRanksAndGoesOnOnAnyNumberOfThem) {
  for (const Model& model : {mlp(44), lookups(44)}) {
    for (const char* spec : {"cd-pair", "id-pair"}) {
      const Scenario run{.spec = spec, .shares = Shares::strided(44, 4), .batch = 3};
      Orders expected;
      const auto bytes = saved(run, model, 2, expected);
      Orders alone;
      EXPECT_EQ(saved(run, model, 1, alone), bytes) << spec;
      EXPECT_EQ(alone, expected) << spec;
      for (const std::size_t ranks : {1, 2, 3})
        EXPECT_EQ(resumed(run, model, ranks, bytes), expected) << spec;
    }
  }
}

/// What was deposited and has not travelled is in it, with a carry and parameters that no other rank knows
/// of.
TEST(TorchWorkers, AStateOfOneRankGoesOnThere) {
  const Model model = mlp(30);
  const Scenario run{.shares = Shares::strided(30, 2), .batch = 3};
  std::vector<std::vector<std::byte>> states(2);
  Orders expected;
  run_on_threads(2, [&](Communicator& communicator) {
    const Model own = model.copy();
    DistributedSampler sampler = make(run, communicator);
    sampler.begin();
    observe_step(sampler, own, run);
    states[communicator.rank()] = encode_state(sampler.local_state());
    while (observe_step(sampler, own, run)) sampler.step();
    sampler.end_epoch();
    if (communicator.rank() == 0) expected = {orders_of(sampler.core())};
  });
  run_on_threads(2, [&](Communicator& communicator) {
    const Model own = model.copy();
    DistributedSampler sampler = make(run, communicator);
    sampler.load_state(decode_state(states[communicator.rank()], "test"));
    sampler.begin();
    while (observe_step(sampler, own, run)) sampler.step();
    sampler.end_epoch();
    EXPECT_EQ(Orders{orders_of(sampler.core())}, expected);
  });
}

/// What was deposited since is gone, and with it what the others were to hear of the parameters.
TEST(TorchWorkers, AStateOfTheBeginningLoadsIntoASamplerThatHasObserved) {
  const Model model = mlp(30);
  const Scenario run{.shares = Shares::strided(30, 2), .epochs = 1};
  const Orders expected = observed(run, model, 2);
  run_on_threads(2, [&](Communicator& communicator) {
    const Model own = model.copy();
    DistributedSampler sampler = make(run, communicator);
    const State state = sampler.local_state();
    sampler.begin();
    observe_step(sampler, own, run);
    sampler.load_state(state);
    sampler.begin();
    while (observe_step(sampler, own, run)) sampler.step();
    sampler.end_epoch();
    EXPECT_EQ(Orders{orders_of(sampler.core())}, expected);
  });
}

/// Strided shares of two workers: each has the examples of one branch.
TEST(TorchWorkers, BatchesOfDifferentParametersAreToldApartByNameOrRefused) {
  const Model model = branches(24);
  Scenario run{.shares = Shares::strided(24, 2)};
  try {
    observed(run, model, 2);
    FAIL() << "not refused";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("ObserveOptions::parameters"), std::string::npos)
        << error.what();
  }
  run.named = true;
  EXPECT_EQ(observed(run, model, 2), deposited(run, model.rows()));
}

TEST(TorchWorkers, VectorsThatAreGivenAndSketchedOnesDoNotDependOnRanks) {
  const Tensor rows = mlp(33).rows();
  for (const char* spec : {"cd-pair", "cd-pair; sketch=sparse:64", "id-pair; sketch=sparse:64"}) {
    const Scenario run{.spec = spec, .shares = Shares::strided(33, 3)};
    const Orders expected = deposited(run, rows);
    for (const std::size_t ranks : {1, 2}) {
      run_on_threads(ranks, [&](Communicator& communicator) {
        DistributedSampler sampler = make(run, communicator);
        for (int epoch = 0; epoch < run.epochs; ++epoch) {
          sampler.begin();
          for (bool any = true; any;) {
            any = false;
            const std::size_t first = sampler.core().first_worker();
            for (std::size_t w = first; w < first + sampler.core().hosted(); ++w) {
              const auto examples = sampler.next(w, run.batch);
              if (examples.empty()) continue;
              any = true;
              const std::vector<std::int64_t> index(examples.begin(), examples.end());
              const Tensor batch = rows.index_select(0, at::tensor(index, at::kLong));
              sampler.observe_gradients({batch.slice(1, 0, 5000), batch.slice(1, 5000)}, examples, w);
            }
            if (any) sampler.step();
          }
          sampler.end_epoch();
          EXPECT_EQ(orders_of(sampler.core()), expected[static_cast<std::size_t>(epoch)])
              << spec << ", " << ranks << " ranks";
        }
      });
    }
  }
}

/// unit=: the gradient of a worker's step is its vector, and all workers get the mean.
TEST(TorchWorkers, GradientsAreAveragedInPlaceAndBalanced) {
  const Model model = mlp(32);
  const Tensor rows = model.rows();
  const Scenario run{.spec = "cd-pair; unit=4", .shares = Shares::strided(32, 2), .batch = 4, .epochs = 1};
  std::vector<std::vector<Index>> orders;
  for (const std::size_t ranks : {1, 2}) {
    run_on_threads(ranks, [&](Communicator& communicator) {
      const Model own = model.copy();
      DistributedSampler sampler = make(run, communicator);
      sampler.begin();
      const std::size_t first = sampler.core().first_worker();
      for (int step = 0; step < 4; ++step) {
        std::vector<std::vector<Tensor>> gradients;
        Tensor all = at::zeros({rows.size(1)}, at::kDouble);
        for (std::size_t w = 0; w < 2; ++w) {
          const auto order = sampler.core().order(w);
          for (std::size_t k = 0; k < 4; ++k)
            all += rows[static_cast<std::int64_t>(order[static_cast<std::size_t>(step) * 4 + k])];
          if (w < first || w >= first + sampler.core().hosted()) continue;
          gradients.push_back(::torch::autograd::grad({own.loss(sampler.next(w, 4))}, own.parameters));
        }
        std::vector<Tensor> mean;
        for (const Tensor& p : own.parameters) mean.push_back(at::empty_like(p));
        if (ranks == 2) {
          sampler.average(gradients[0], 4.0);
          mean = gradients[0];
        } else {
          sampler.average(gradients, {4.0, 4.0}, mean);
        }
        std::vector<Tensor> flat;
        for (const Tensor& m : mean) flat.push_back(m.reshape({-1}));
        EXPECT_TRUE(at::equal(at::cat(flat), all / 2.0));
      }
      sampler.end_epoch();
      if (communicator.rank() > 0) return;
      if (ranks == 1) orders = orders_of(sampler.core());
      EXPECT_EQ(orders_of(sampler.core()), orders);
    });
  }
  SelfCommunicator self;
  EXPECT_THROW(
      DistributedSampler(Shares::strided(8, 1), "cd-pair", borrowed(self)).average({at::ones({3})}, 1),
      UserError);
}

TEST(TorchWorkers, AWorkerMustBeNamedWhereThereAreSeveralAndHosted) {
  SelfCommunicator self;
  DistributedSampler sampler(Shares::strided(8, 2), "cd-pair", borrowed(self));
  sampler.begin();
  const Model model = mlp(8).copy();
  const Tensor loss = model.loss(sampler.next(1, 2));
  EXPECT_THROW(sampler.observe(loss, 2), UserError);
  EXPECT_THROW(sampler.observe(loss, 2, {}, 2), UserError);
  EXPECT_THROW(sampler.observe(loss, 2, {}, 0), UserError);
  sampler.observe(loss, 2, {.sum = true}, 1);
  loss.backward();
  EXPECT_EQ(sampler.core().report(1).observed, 2U);
}

/// One row that is not finite is passed over, and so is nothing else.
TEST(TorchWorkers, WhatIsNotFiniteIsPassedOver) {
  Model model = mlp(24);
  model.x[5][3] = std::numeric_limits<double>::infinity();
  Model clean = mlp(24);
  const Scenario run{.shares = Shares::strided(24, 2), .epochs = 1};
  Tensor rows = clean.rows();
  rows[5].fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(observed(run, model, 2), deposited(run, rows));
}

}  // namespace
}  // namespace cdgrab::torch
