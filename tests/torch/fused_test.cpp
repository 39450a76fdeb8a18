// SPDX-License-Identifier: Apache-2.0
// The word `fused`: the gradients of a step are the plain ones to rounding, and the orders the same.
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/torch/sampler.hpp"
#include "models/models.hpp"

namespace cdgrab::torch {
namespace {

using at::Tensor;
using models::Case;

std::vector<Tensor> take_gradients(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> all;
  for (const Tensor& p : parameters) all.push_back(std::exchange(p.mutable_grad(), Tensor()));
  return all;
}

void expect_close(const std::vector<Tensor>& some, const std::vector<Tensor>& others, double tolerance,
                  const std::string& name) {
  ASSERT_EQ(some.size(), others.size());
  for (std::size_t p = 0; p < some.size(); ++p) {
    ASSERT_EQ(some[p].defined(), others[p].defined()) << name << ", parameter " << p;
    if (!some[p].defined()) continue;
    ASSERT_EQ(some[p].sizes(), others[p].sizes()) << name << ", parameter " << p;
    const double size = others[p].abs().max().item<double>();
    EXPECT_LE((some[p] - others[p]).abs().max().item<double>(), tolerance * size)
        << name << ", parameter " << p;
  }
}

/// A model, a batch of it, and samplers for that batch.
struct Step {
  Case model;
  Tensor x;
  Tensor y;

  static Step of(Case model, std::int64_t batch, bool wide) {
    for (const Tensor& p : model.parameters)
      if (wide) p.set_data(p.data().to(at::kDouble));
    auto [x, y] = model.data(batch);
    if (wide && x.is_floating_point()) x = x.to(at::kDouble);
    return {std::move(model), x, y};
  }
  [[nodiscard]] Tensor loss() const { return model.loss(x, y); }
  /// Of some of its examples.
  [[nodiscard]] Tensor loss(const std::vector<std::size_t>& examples) const {
    const Tensor index = at::tensor(std::vector<std::int64_t>(examples.begin(), examples.end()), at::kLong);
    return model.loss(x.index_select(0, index), y.index_select(0, index));
  }
  /// The gradients of `backward`, run on a loss that a sampler of this spec observes; "": none does.
  [[nodiscard]] std::vector<Tensor> gradients(
      const std::string& spec,
      const std::function<void(const Tensor&)>& backward = [](const Tensor& l) { l.backward(); },
      const ObserveOptions& options = {}) const {
    const Tensor seen = loss();
    std::optional<Sampler> sampler;
    if (!spec.empty()) {
      sampler.emplace(static_cast<std::size_t>(x.size(0)), spec);
      sampler->next(static_cast<std::size_t>(x.size(0)));
      sampler->observe(seen, x.size(0), options);
    }
    backward(seen);
    if (sampler) {
      EXPECT_EQ(sampler->core().report().observed, static_cast<std::size_t>(x.size(0)));
    }
    return take_gradients(model.parameters);
  }
};

class FusedModels : public testing::TestWithParam<std::tuple<std::size_t, std::int64_t, bool>> {};

TEST_P(FusedModels, GradientsAreThePlainOnesToRounding) {
  const auto [index, batch, wide] = GetParam();
  ::torch::manual_seed(7);
  const Step step = Step::of(models::all()[index], batch, wide);
  const auto plain = step.gradients("");
  const double tolerance = wide ? 1e-12 : 1e-5;
  for (const char* spec :
       {"pair; fused", "mean; fused", "recursive-pair; depth=3; fused", "pair; sketch=pca:4; fused"})
    expect_close(step.gradients(spec), plain, tolerance, step.model.name + ", " + spec);
}

TEST_P(FusedModels, GradientsAreThePlainOnesToRoundingWhereRowsAreLate) {
  const auto [index, batch, wide] = GetParam();
  ::torch::manual_seed(7);
  const Step step = Step::of(models::all()[index], batch, wide);
  const auto plain = step.gradients("");
  std::size_t bytes = 0;
  for (const Tensor& p : step.model.parameters) bytes += p.nbytes();
  const auto backward = [](const Tensor& loss) { loss.backward(); };
  for (const std::size_t examples : {std::size_t{5}, static_cast<std::size_t>(batch) - 1})
    expect_close(step.gradients("pair; fused", backward, {.budget = examples * bytes}), plain,
                 wide ? 1e-12 : 1e-5, step.model.name);
}

INSTANTIATE_TEST_SUITE_P(All, FusedModels,
                         testing::Combine(testing::Range(std::size_t{0}, models::all().size()),
                                          testing::Values(1, 3, 16), testing::Bool()),
                         [](const auto& instance) {
                           return models::all()[std::get<0>(instance.param)].name + "B" +
                                  std::to_string(std::get<1>(instance.param)) +
                                  (std::get<2>(instance.param) ? "Double" : "Float");
                         });

TEST(Fused, OrdersAreThoseOfTheExactWayOverThreeEpochs) {
  for (const std::size_t index : {std::size_t{0}, std::size_t{1}, std::size_t{4}, std::size_t{5}})
    for (const std::string spec :
         {"pair", "mean", "recursive-pair; depth=2", "pair; sketch=gauss:16", "pair; sketch=pca:4"}) {
      const auto orders = [&](const std::string& text) {
        ::torch::manual_seed(3);
        const Step data = Step::of(models::all()[index], 23, true);
        Sampler sampler(23, text, {.seed = 5});
        ::torch::optim::SGD optimizer(data.model.parameters, ::torch::optim::SGDOptions(0.01));
        std::vector<std::vector<Index>> all;
        for (int epoch = 0; epoch < 3; ++epoch) {
          sampler.reset();
          while (const auto examples = sampler.next(7)) {
            const Tensor loss = data.loss(*examples);
            sampler.observe(loss, static_cast<std::int64_t>(examples->size()));
            optimizer.zero_grad();
            loss.backward();
            optimizer.step();
          }
          sampler.end_epoch();
          all.emplace_back(sampler.core().order().begin(), sampler.core().order().end());
        }
        return all;
      };
      EXPECT_EQ(orders(spec + "; fused"), orders(spec)) << models::all()[index].name << ", " << spec;
    }
}

/// Matrix products that run inside `action`.
std::size_t products_in(const std::function<void()>& action) {
  static thread_local std::size_t count;
  count = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
        if (std::string_view(f.name()) == "aten::mm") ++count;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  action();
  at::removeCallback(handle);
  return count;
}

/// Sequences, so that rows are formed: a weight and a bias, with activations that need a gradient.
Step sequences() {
  ::torch::nn::Linear first(6, 8);
  ::torch::nn::Linear second(8, 5);
  const Case model{"sequences",
                   {first->weight, first->bias, second->weight, second->bias},
                   [first, second](const Tensor& x, const Tensor& y) mutable {
                     return at::mse_loss(second(at::tanh(first(x))), y);
                   },
                   [](std::int64_t batch) {
                     return std::pair{at::randn({batch, 63, 6}), at::randn({batch, 63, 5})};
                   }};
  return Step::of(model, 4, true);
}

TEST(Fused, TheNodeDoesNotComputeWhatIsKnown) {
  const Step step = sequences();
  const auto products = [&](const std::string& spec) {
    return products_in([&] { (void)step.gradients(spec); });
  };
  EXPECT_EQ(products("pair; fused") + 2, products("pair")) << "one product less for each of two weights";
}

TEST(Fused, LossesAreScaledAccumulatedAndSummedAsEver) {
  const Step step = sequences();
  const auto backward = [](const Tensor& l) { (l * 1024.0).backward(); };
  expect_close(step.gradients("pair; fused", backward), step.gradients("", backward), 1e-12, "scaled");
  const auto twice = [&](const std::string& spec) {
    std::vector<Tensor> first = step.gradients(spec);
    for (std::size_t p = 0; p < first.size(); ++p) step.model.parameters[p].mutable_grad() = first[p];
    return step.gradients(spec);
  };
  expect_close(twice("pair; fused"), twice(""), 1e-12, "accumulated");
  // A vector of losses, of which one does not count.
  const auto vector_gradients = [&](bool fused, const Tensor& weights) {
    const auto forward = [&](const Tensor& x) {
      return at::tanh(x.matmul(step.model.parameters[0].t()) + step.model.parameters[1]).pow(2).sum({1, 2});
    };
    const Tensor losses = forward(step.x);
    Sampler sampler(4, "pair; fused");
    sampler.next(4);
    if (fused) sampler.observe(losses, 4);
    losses.backward(weights);
    return take_gradients({step.model.parameters[0], step.model.parameters[1]});
  };
  for (const Tensor& weights :
       {at::tensor({1.0, 2.0, -0.5, 3.0}, at::kDouble), at::tensor({1.0, 0.0, 2.0, 1.0}, at::kDouble)})
    expect_close(vector_gradients(true, weights), vector_gradients(false, weights), 1e-12, "a vector");
}

TEST(Fused, WhatElseRunsThroughTheGraphSeesWhatItAlwaysSees) {
  const Step step = sequences();
  const auto kept = [](const Tensor& l) { l.backward({}, /*retain_graph=*/true); };
  expect_close(step.gradients("pair; fused", kept), step.gradients("", kept), 1e-12, "a graph that is kept");
  const auto differentiated = [](const Tensor& l) { l.backward({}, true, /*create_graph=*/true); };
  const auto graph_of = [&](const std::string& spec) {
    std::vector<Tensor> all = step.gradients(spec, differentiated);
    const Tensor penalty = all[0].pow(2).sum();
    return ::torch::autograd::grad({penalty}, {step.model.parameters[2]})[0];
  };
  expect_close({graph_of("pair; fused")}, {graph_of("")}, 1e-12, "a backward that is differentiated");
}

TEST(Fused, OnlyWhatIsAskedForIsComputed) {
  const Step step = sequences();
  const auto asked = [&](bool fused) {
    const Tensor loss = step.loss();
    Sampler sampler(4, "pair; fused");
    sampler.next(4);
    if (fused) sampler.observe(loss, 4);
    return ::torch::autograd::grad({loss}, {step.model.parameters[0]});
  };
  expect_close(asked(true), asked(false), 1e-12, "one parameter of four");
  for (const Tensor& p : step.model.parameters) EXPECT_FALSE(p.grad().defined());
}

TEST(Fused, AfterABackwardThatBrokeOffTheGraphIsWhole) {
  const Step step = sequences();
  const Tensor loss = step.loss();
  Sampler sampler(4, "pair; fused");
  sampler.next(4);
  sampler.observe(loss, 4);
  // The second layer's node has given its sum and then fails: its weight is not what it was.
  const Tensor weight = step.model.parameters[2];
  const Tensor before = weight.detach().clone();
  {
    const at::NoGradGuard no_grad;
    weight.mul_(2.0);
  }
  EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), c10::Error);
  std::size_t weights = 0;
  for (std::vector<::torch::autograd::Node*> left = {loss.grad_fn().get()}; !left.empty();) {
    ::torch::autograd::Node* node = left.back();
    left.pop_back();
    if (node->name() == "TBackward0") ++weights;
    for (const auto& edge : node->next_edges())
      if (edge.is_valid()) left.push_back(edge.function.get());
  }
  EXPECT_EQ(weights, 2U) << "an edge is still off";
  {
    const at::NoGradGuard no_grad;
    weight.copy_(before);
  }
  (void)take_gradients(step.model.parameters);
  expect_close(step.gradients("pair; fused"), step.gradients(""), 1e-12, "the next loss");
}

/// A layer large enough for its register to be updated by the sum that its node has computed.
Step large_layer() {
  ::torch::nn::Sequential net(::torch::nn::Linear(512, 520), ::torch::nn::Tanh(),
                              ::torch::nn::Linear(520, 3));
  return Step::of(models::classifier("large", net, {512}, 3), 23, true);
}

/// Orders of three epochs from batches of 7, odd ones with a carry; `dense`: by rows in memory.
std::vector<std::vector<Index>> orders_of(const Step& data, const std::string& spec, bool dense) {
  Sampler ghost(23, spec, {.seed = 5});
  cdgrab::Sampler core(23, parse_spec(spec), {.seed = 5});
  std::vector<std::vector<Index>> all;
  for (int epoch = 0; epoch < 3; ++epoch) {
    ghost.reset();
    core.begin();
    while (const auto examples = ghost.next(7)) {
      core.next(7);
      const Tensor loss = data.loss(*examples);
      GradientGeometry geometry;
      const auto batch = static_cast<std::int64_t>(examples->size());
      if (dense) geometry.observe(loss, batch);
      ghost.observe(loss, batch);
      loss.backward();
      if (!dense) continue;
      const Tensor rows = geometry.rows().contiguous();
      core.observe(Rows<double>{rows.const_data_ptr<double>(), examples->size(),
                                static_cast<std::size_t>(rows.size(1))});
    }
    ghost.end_epoch();
    if (dense) core.end_epoch();
    const auto order = dense ? core.order() : ghost.core().order();
    all.emplace_back(order.begin(), order.end());
  }
  (void)take_gradients(data.model.parameters);
  return all;
}

TEST(KnownSums, OrdersAreThoseOfRowsInMemory) {
  const Step data = large_layer();
  for (const std::string spec : {"pair", "mean", "batch", "mean; centring=ema", "pair; normalize"})
    EXPECT_EQ(orders_of(data, spec, false), orders_of(data, spec, true)) << spec;
}

/// Sequences of whole numbers, whose gradients are whole, too: more of them than small parameters have, which
/// are always rows, and no length that could be taken for the batch.
Step whole_sequences(std::int64_t positions, std::int64_t inputs = 163, std::int64_t outputs = 83,
                     std::int64_t examples = 23) {
  const Tensor weight = at::randint(-2, 3, {inputs, outputs}, at::kFloat).requires_grad_();
  const Case model{"whole sequences",
                   {weight},
                   [weight](const Tensor& x, const Tensor& y) { return at::matmul(x, weight).mul(y).sum(); },
                   [=](std::int64_t batch) {
                     return std::pair{at::randint(-3, 4, {batch, positions, inputs}, at::kFloat),
                                      at::randint(-3, 4, {batch, positions, outputs}, at::kFloat)};
                   }};
  return Step::of(model, examples, false);
}

/// Orders of three epochs from batches of this size, and the gradients of all of their steps.
std::pair<std::vector<std::vector<Index>>, Tensor> orders_within(const Step& data, const std::string& spec,
                                                                 std::size_t budget, std::size_t batch = 7) {
  Sampler sampler(static_cast<std::size_t>(data.x.size(0)), spec, {.seed = 5});
  std::vector<std::vector<Index>> all;
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.reset();
    while (const auto examples = sampler.next(batch)) {
      const Tensor loss = data.loss(*examples);
      sampler.observe(loss, static_cast<std::int64_t>(examples->size()), {.sum = true, .budget = budget});
      loss.backward();
    }
    sampler.end_epoch();
    all.emplace_back(sampler.core().order().begin(), sampler.core().order().end());
  }
  return {all, take_gradients(data.model.parameters)[0]};
}

/// Torch's, for as long as it lives.
class Threads {
 public:
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_ = at::get_num_threads();
};

TEST(ManyPositions, WholeNumbersGiveTheSameOrdersAndGradientsWhateverIsHeldAndFused) {
  constexpr std::size_t kNone = 0;
  constexpr std::size_t kMuch = std::size_t{1} << 30;
  for (const std::int64_t positions : {11, 307}) {
    const Step data = whole_sequences(positions);
    const auto [orders, gradient] = orders_within(data, "pair", kMuch);
    EXPECT_NE(orders[1], orders[2]);
    const Threads threads(positions > 100 ? 3 : 1);
    for (const auto& [spec, budget] :
         {std::pair{"pair", kNone}, {"pair; fused", kMuch}, {"pair; fused", kNone}}) {
      const auto [others, same] = orders_within(data, spec, budget);
      EXPECT_EQ(others, orders) << spec << ", budget " << budget << ", " << positions << " positions";
      EXPECT_TRUE(at::equal(same, gradient))
          << spec << ", budget " << budget << ", " << positions << " positions";
    }
  }
}

/// With room for five of seven examples parts are of four; odd batches leave one waiting between parts, too.
TEST(LateRows, WholeNumbersGiveTheSameOrdersAndGradientsAsRowsOfTheWholeBatch) {
  constexpr std::size_t kFive = std::size_t{5} * 163 * 83 * sizeof(float);
  constexpr std::size_t kMuch = std::size_t{1} << 30;
  for (const std::int64_t positions : {1, 11, 307}) {
    const Step data = whole_sequences(positions);
    for (const std::string spec :
         {"pair", "recursive-pair; depth=2", "mean; centring=none", "pair; sign=walk,c=1e9"}) {
      const auto [orders, gradient] = orders_within(data, spec, kMuch);
      EXPECT_NE(orders[1], orders[2]);
      for (const std::string& way : {spec, spec + "; fused"}) {
        const auto [late, same] = orders_within(data, way, kFive);
        EXPECT_EQ(late, orders) << way << ", " << positions << " positions";
        EXPECT_TRUE(at::equal(same, gradient)) << way << ", " << positions << " positions";
      }
    }
  }
}

/// Rows of one product that would leave the cache are late whatever the budget.
TEST(LateRows, WholeNumbersGiveTheSameOrdersInBatchesThatLeaveTheCache) {
  constexpr std::size_t kMuch = std::size_t{1} << 30;
  const Step data = whole_sequences(1, 784, 10, 128);
  for (const std::string spec : {"pair", "pair; fused", "mean"})
    for (const std::size_t batch : {64, 127, 128})
      EXPECT_EQ(orders_within(data, spec, kMuch, batch).first, orders_within(data, spec, kMuch, 8).first)
          << spec << ", " << batch;
}

TEST(LateRows, ResumingBetweenBatchesEqualsNeverStopping) {
  constexpr std::size_t kFive = std::size_t{5} * 163 * 83 * sizeof(float);
  const Step data = whole_sequences(11);
  const auto observe = [&](Sampler& sampler) {
    const auto examples = sampler.next(7);
    const Tensor loss = data.loss(*examples);
    sampler.observe(loss, static_cast<std::int64_t>(examples->size()), {.sum = true, .budget = kFive});
    loss.backward();
  };
  Sampler whole(23, "pair", {.seed = 5});
  Sampler first(23, "pair", {.seed = 5});
  Sampler second(23, "pair", {.seed = 6});
  for (int step = 0; step < 2; ++step) {
    observe(whole);
    observe(first);
  }
  second.load_state(first.core().state());
  for (int step = 0; step < 2; ++step) {
    observe(whole);
    observe(second);
  }
  EXPECT_EQ(second.core().next_order(), whole.core().next_order());
  (void)take_gradients(data.model.parameters);
}

TEST(KnownSums, AreNotUsedWhereSomebodyWritesToTheGradient) {
  Step data = large_layer();
  const auto expected = orders_of(data, "pair", true);
  const Case plain = data.model;
  // In place, while the backward runs.
  data.model.loss = [plain](const Tensor& x, const Tensor& y) {
    const Tensor loss = plain.loss(x, y);
    plain.parameters[0].register_hook([](const Tensor& g) -> Tensor {
      Tensor same = g;
      return same.mul_(3.0);
    });
    return loss;
  };
  EXPECT_EQ(orders_of(data, "pair", false), expected);
}

TEST(Fused, AStateGoesOnTheSameAndRemembersTheWord) {
  const Step step = sequences();
  Sampler sampler(8, "pair; fused");
  sampler.next(4);
  const Tensor loss = step.loss();
  sampler.observe(loss, 4);
  loss.backward();
  Sampler other(8, "pair; fused");
  other.load_state(sampler.core().state());
  EXPECT_EQ(other.core().state(), sampler.core().state());
  EXPECT_EQ(print_spec(other.core().spec()), "pair; fused");
}

/// Layers that an example passes once, the second large enough that its gradient comes with the update of the
/// register, after the backward.
Step wide_layers(std::int64_t batch) {
  ::torch::manual_seed(4);
  ::torch::nn::Sequential net(::torch::nn::Linear(20, 640), ::torch::nn::Tanh(),
                              ::torch::nn::Linear(640, 512), ::torch::nn::Tanh(),
                              ::torch::nn::Linear(512, 4));
  return Step::of(models::classifier("wide", net, {20}, 4), batch, false);
}

const std::array<const char*, 4> kFusedOrders = {"pair; fused", "mean; fused", "batch; fused",
                                                 "pair; sign=walk,c=3; fused"};

TEST(FusedSingleProducts, GradientsAreThePlainOnesToRoundingAndTheNodeComputesNone) {
  for (const std::int64_t batch : {2, 7, 16}) {
    const Step step = wide_layers(batch);
    const auto plain = step.gradients("");
    for (const char* spec : kFusedOrders)
      expect_close(step.gradients(spec), plain, 1e-5, std::to_string(batch) + " of " + spec);
  }
  const Step step = wide_layers(16);
  const auto products = [&](const char* spec) {
    return products_in([&] { static_cast<void>(step.gradients(spec)); });
  };
  // Of the first block, where the accumulator is zero: one weight gradient less.
  EXPECT_EQ(products("pair; fused") + 1, products("pair"));
}

TEST(FusedSingleProducts, OrdersAreThoseOfTheExactWayWhateverIsLeftOver) {
  const auto orders = [](const std::string& spec, std::size_t batch) {
    const Step data = wide_layers(29);
    Sampler sampler(29, spec, {.seed = 3});
    std::vector<std::vector<Index>> all;
    for (int epoch = 0; epoch < 3; ++epoch) {
      sampler.reset();
      while (const auto examples = sampler.next(batch)) {
        const Tensor loss = data.loss(*examples);
        sampler.observe(loss, static_cast<std::int64_t>(examples->size()));
        loss.backward();
      }
      sampler.end_epoch();
      all.emplace_back(sampler.core().order().begin(), sampler.core().order().end());
    }
    return all;
  };
  for (const std::string spec : {"pair", "mean"})
    for (const std::size_t batch : {std::size_t{5}, std::size_t{8}})
      EXPECT_EQ(orders(spec + "; fused", batch), orders(spec, batch)) << spec << ", batches of " << batch;
}

TEST(FusedSingleProducts, GradientsAddUpToThoseThatAreThere) {
  const Step step = wide_layers(6);
  for (int turn = 0; turn < 2; ++turn) (step.loss() * 0.5).backward();
  const auto plain = take_gradients(step.model.parameters);
  Sampler sampler(12, "pair; fused");
  for (int turn = 0; turn < 2; ++turn) {
    sampler.next(6);
    const Tensor loss = step.loss();
    sampler.observe(loss, 6);
    (loss * 0.5).backward();
  }
  expect_close(take_gradients(step.model.parameters), plain, 1e-5, "accumulated");
}

TEST(FusedSingleProducts, OneNumberPerExampleIsALoss) {
  const Step step = wide_layers(6);
  const auto gradients = [&](const char* spec) {
    const Tensor losses =
        at::cross_entropy_loss(at::mm(at::tanh(at::mm(at::tanh(at::mm(step.x, step.model.parameters[0].t())),
                                                      step.model.parameters[2].t())),
                                      step.model.parameters[4].t()),
                               step.y, {}, at::Reduction::None);
    Sampler sampler(6, spec);
    sampler.next(6);
    sampler.observe(losses, 6);
    losses.backward(at::linspace(0.5, 2.0, 6));
    return take_gradients(step.model.parameters);
  };
  expect_close(gradients("pair; fused"), gradients("pair"), 1e-5, "per example");
}

/// What somebody may see before the backward is over is there in time.
TEST(FusedSingleProducts, WhoWaitsForAGradientInTheBackwardGetsItThere) {
  const Step step = wide_layers(6);
  const auto plain = step.gradients("");
  const Tensor large = step.model.parameters[2];

  Tensor hooked;
  const auto handle = large.register_hook([&](const Tensor& gradient) { hooked = gradient.clone(); });
  expect_close(step.gradients("pair; fused"), plain, 1e-5, "with a hook");
  expect_close({hooked}, {plain[2]}, 1e-5, "what the hook saw");
  large.remove_hook(handle);

  std::vector<Tensor> asked;
  static_cast<void>(step.gradients("pair; fused", [&](const Tensor& loss) {
    asked = ::torch::autograd::grad({loss}, step.model.parameters);
  }));
  expect_close(asked, plain, 1e-5, "autograd.grad");

  const auto only = step.gradients("pair; fused", [&](const Tensor& loss) {
    loss.backward({}, /*retain_graph=*/false, /*create_graph=*/false, step.model.parameters);
  });
  expect_close(only, plain, 1e-5, "inputs=");
}

/// As of a sharded model: it looks at the gradient of the layer above when its turn comes.
struct Looks : ::torch::autograd::Function<Looks> {
  static inline Tensor above;  // NOLINT: a function has no other way to know of it without depending on it
  static Tensor forward(::torch::autograd::AutogradContext* /*context*/, const Tensor& x) {
    return x.view_as(x);
  }
  static variable_list backward(::torch::autograd::AutogradContext* /*context*/,
                                const variable_list& gradients) {
    EXPECT_TRUE(above.grad().defined());
    return gradients;
  }
};

TEST(FusedSingleProducts, AFunctionOfSomebodysOwnFindsTheGradientsOfTheLayersAbove) {
  const Step step = wide_layers(6);
  const auto& p = step.model.parameters;
  Looks::above = p[2];
  const auto gradients = [&](const char* spec) {
    const Tensor hidden = at::tanh(at::mm(step.x, p[0].t()));
    const Tensor passed = Looks::apply(hidden);  // before the weight is turned, so that it runs after that
    const Tensor above = at::tanh(at::mm(passed, p[2].t()));
    const Tensor loss = at::cross_entropy_loss(at::mm(above, p[4].t()), step.y);
    Sampler sampler(6, spec);
    sampler.next(6);
    sampler.observe(loss, 6);
    loss.backward();
    return take_gradients(p);
  };
  expect_close(gradients("pair; fused"), gradients("pair"), 1e-5, "looked at");
  Looks::above = Tensor();
}

TEST(FusedSingleProducts, WhatIsNotFiniteReachesTheGradientAndNoRegister) {
  Step step = wide_layers(6);
  step.x = step.x.clone();
  step.x[2][0] = std::numeric_limits<float>::quiet_NaN();
  Sampler sampler(12, "pair; fused");
  sampler.next(6);
  const Tensor bad = step.loss();
  sampler.observe(bad, 6);
  bad.backward();
  EXPECT_TRUE(take_gradients(step.model.parameters)[2].isnan().any().item<bool>());
  EXPECT_EQ(sampler.core().report().not_finite, 1U);
  step.x[2][0] = 0.5F;
  const auto plain = step.gradients("");
  sampler.next(6);
  const Tensor good = step.loss();
  sampler.observe(good, 6);
  good.backward();
  expect_close(take_gradients(step.model.parameters), plain, 1e-5, "after");
  EXPECT_EQ(sampler.core().report().not_finite, 1U);
}

TEST(FusedSingleProducts, AGradientComesWithoutTheSampler) {
  const Step step = wide_layers(6);
  const auto plain = step.gradients("");
  const Tensor loss = step.loss();
  {
    Sampler sampler(6, "pair; fused");
    sampler.next(6);
    sampler.observe(loss, 6);
  }
  loss.backward();
  expect_close(take_gradients(step.model.parameters), plain, 1e-5, "the sampler is gone");
}

TEST(FusedSingleProducts, AWeightOfTwoUsesHasTheSumOfBoth) {
  ::torch::manual_seed(2);
  const Tensor weight = at::randn({520, 520}).mul_(0.05).set_requires_grad(true);
  const Tensor x = at::randn({6, 520});
  const auto gradient = [&](const char* spec) {
    const Tensor loss = at::mm(at::tanh(at::mm(x, weight.t())), weight.t()).square().mean();
    Sampler sampler(6, spec);
    sampler.next(6);
    sampler.observe(loss, 6);
    loss.backward();
    return take_gradients({weight});
  };
  expect_close(gradient("pair; fused"), gradient("pair"), 1e-5, "two uses");
}

}  // namespace
}  // namespace cdgrab::torch
