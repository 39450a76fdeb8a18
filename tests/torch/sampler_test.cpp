// SPDX-License-Identifier: Apache-2.0
// The sampler of a LibTorch training loop: the order it learns, its loader, its state.
#include "cdgrab/torch/sampler.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <sstream>

#include "cdgrab/error.hpp"
#include "models/models.hpp"
#include "tests/unit/temp_folder.hpp"

namespace cdgrab::torch {
namespace {

using at::Tensor;
using models::Case;

struct Data {
  Tensor x;
  Tensor y;
  [[nodiscard]] std::pair<Tensor, Tensor> at_examples(const std::vector<std::size_t>& examples) const {
    const Tensor index = at::tensor(std::vector<std::int64_t>(examples.begin(), examples.end()), at::kLong);
    return {x.index_select(0, index), y.index_select(0, index)};
  }
};

Data wide_data(const Case& c, std::int64_t n) {
  auto [x, y] = c.data(n);
  return {x.is_floating_point() ? x.to(at::kDouble) : x, y};
}

void make_wide(const Case& c) {
  for (const Tensor& p : c.parameters) p.set_data(p.data().to(at::kDouble));
}

std::vector<Index> order_of(const cdgrab::Sampler& sampler) {
  return {sampler.order().begin(), sampler.order().end()};
}

std::string archive_of(const Sampler& sampler) {
  ::torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream stream;
  out.save_to(stream);
  return stream.str();
}

void load_archive(Sampler& sampler, const std::string& archive) {
  std::stringstream stream(archive);
  ::torch::serialize::InputArchive in;
  in.load_from(stream);
  sampler.load(in);
}

class GhostAgainstDense : public testing::TestWithParam<std::tuple<std::size_t, std::string>> {};

/// The weights change all the time; the vectors are given to both, as a loss and as rows in memory.
TEST_P(GhostAgainstDense, SameSignsOverTwoEpochs) {
  const auto& [index, spec] = GetParam();
  ::torch::manual_seed(3);
  const Case c = models::all()[index];
  make_wide(c);
  const std::int64_t n = 41;
  const Data data = wide_data(c, n);
  Sampler ghost(static_cast<std::size_t>(n), spec, {.seed = 5});
  cdgrab::Sampler dense(static_cast<std::size_t>(n), parse_spec(spec), {.seed = 5});
  ::torch::optim::SGD optimizer(c.parameters, ::torch::optim::SGDOptions(0.01));
  for (int epoch = 0; epoch < 3; ++epoch) {
    ghost.reset();
    dense.begin();
    ASSERT_EQ(order_of(ghost.core()), order_of(dense)) << c.name << ", epoch " << epoch;
    while (const auto examples = ghost.next(7)) {
      const auto [x, y] = data.at_examples(*examples);
      const auto batch = static_cast<std::int64_t>(examples->size());
      const Tensor loss = c.loss(x, y);
      GradientGeometry geometry;
      geometry.observe(loss, batch);
      ghost.observe(loss, batch);
      optimizer.zero_grad();
      loss.backward();
      const Tensor rows = geometry.rows().contiguous();
      ASSERT_EQ(dense.next(7).size(), examples->size());
      dense.observe(Rows<double>{rows.const_data_ptr<double>(), examples->size(),
                                 static_cast<std::size_t>(rows.size(1))});
      optimizer.step();
    }
    EXPECT_EQ(ghost.core().report().observed, static_cast<std::size_t>(n));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GhostAgainstDense,
    testing::Combine(testing::Values(std::size_t{0}, std::size_t{1}, std::size_t{4}, std::size_t{5}),
                     testing::Values("pair", "mean", "batch", "recursive; depth=2", "recursive-pair; depth=2",
                                     "pair; sign=halving")),
    [](const auto& instance) {
      std::string name = models::all()[std::get<0>(instance.param)].name + "_" + std::get<1>(instance.param);
      std::erase_if(name, [](char ch) { return std::isalnum(static_cast<unsigned char>(ch)) == 0; });
      return name;
    });

struct Numbers : ::torch::data::datasets::Dataset<Numbers> {
  ::torch::data::Example<> get(std::size_t i) override {
    return {at::full({12}, static_cast<double>(i) / 10.0).cos(),
            at::scalar_tensor(static_cast<std::int64_t>(i % 5), at::kLong)};
  }
  [[nodiscard]] std::optional<std::size_t> size() const override { return 23; }
};

/// The loader takes a copy; what it hands out and what we observe are one sampler, with workers ahead of us.
TEST(TorchSampler, ALoadersCopyIsTheSameSampler) {
  const Case c = models::mlp();
  Sampler sampler(23, "pair");
  auto dataset = Numbers().map(::torch::data::transforms::Stack<>());
  auto loader = ::torch::data::make_data_loader(std::move(dataset), sampler,
                                                ::torch::data::DataLoaderOptions().batch_size(4).workers(2));
  std::vector<std::vector<Index>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : *loader) {
      const Tensor loss = c.loss(batch.data, batch.target);
      sampler.observe(loss, batch.data.size(0));
      loss.backward();
    }
    orders.push_back(order_of(sampler.core()));
    EXPECT_EQ(sampler.core().report().observed, 23U);
    EXPECT_EQ(sampler.core().epoch(), static_cast<std::uint64_t>(epoch));
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  EXPECT_TRUE(is_permutation(orders[2]));
}

TEST(TorchSampler, AnArchiveInTheMiddleOfAnEpochGoesOnTheSame) {
  ::torch::manual_seed(1);
  const Case c = models::lenet();
  const Data data{c.data(30).first, c.data(30).second};
  Sampler whole(30, "pair");
  Sampler resumed(30, "pair");
  const auto step = [&](Sampler& sampler) {
    auto examples = sampler.next(5);
    if (!examples) {
      sampler.reset();
      examples = sampler.next(5);
    }
    const auto [x, y] = data.at_examples(*examples);
    const Tensor loss = c.loss(x, y);
    sampler.observe(loss, static_cast<std::int64_t>(examples->size()));
    loss.backward();
    return *examples;
  };
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(step(whole), step(resumed)) << i;
    if (i % 3 != 1) continue;
    Sampler other(30, "pair", {.seed = 9});
    load_archive(other, archive_of(resumed));
    EXPECT_EQ(other.core().state(), resumed.core().state());
    resumed = other;
    resumed.reset();
    if (whole.core().position().handed_out == 30) whole.reset();
  }
}

TEST(TorchSampler, ABackwardThatNeverComesIsCountedAndTakesNobodysPlace) {
  const Case c = models::mlp();
  const auto [x, y] = c.data(4);
  Sampler sampler(12, "pair");
  sampler.next(12);
  sampler.observe(c.loss(x, y), 4);  // dropped at once
  const Tensor loss = c.loss(x, y);
  sampler.observe(loss, 4);
  EXPECT_EQ(sampler.missed_backwards(), 1U);
  loss.backward();
  EXPECT_EQ(sampler.core().report().observed, 4U);
}

TEST(TorchSampler, ABackwardAfterALoadBelongsToNobody) {
  const Case c = models::mlp();
  const auto [x, y] = c.data(4);
  Sampler sampler(12, "pair");
  sampler.next(12);
  const std::string archive = archive_of(sampler);
  const Tensor loss = c.loss(x, y);
  sampler.observe(loss, 4);
  load_archive(sampler, archive);
  loss.backward();
  EXPECT_EQ(sampler.core().report().observed, 0U);
}

TEST(TorchSampler, TwoObservedLossesMayComeBackInAnyOrder) {
  ::torch::manual_seed(2);
  const Case c = models::mlp();
  const auto [x, y] = c.data(8);
  const auto run = [&](bool swapped) {
    Sampler sampler(8, "pair", {.initial_order = identity_order(8)});
    sampler.next(8);
    const Tensor a = c.loss(x.slice(0, 0, 4), y.slice(0, 0, 4));
    const Tensor b = c.loss(x.slice(0, 4, 8), y.slice(0, 4, 8));
    sampler.observe(a, 4);
    sampler.observe(b, 4);
    (swapped ? b : a).backward();
    (swapped ? a : b).backward();
    EXPECT_EQ(sampler.core().report().observed, 8U);
    return sampler.core().next_order();
  };
  EXPECT_TRUE(is_permutation(run(false)));
  EXPECT_TRUE(is_permutation(run(true)));
}

TEST(TorchSampler, ASecondBackwardThroughAnObservedLossIsRefused) {
  const Case c = models::mlp();
  const auto [x, y] = c.data(4);
  Sampler sampler(12, "pair");
  sampler.next(12);
  const Tensor loss = c.loss(x, y);
  sampler.observe(loss, 4);
  loss.backward({}, true);
  EXPECT_THROW(loss.backward(), UserError);
}

TEST(TorchSampler, BadLossesAreRefusedAndChangeNothing) {
  const Case c = models::mlp();
  const auto [x, y] = c.data(4);
  Sampler sampler(12, "pair");
  sampler.next(8);
  const State before = sampler.core().state();
  EXPECT_THROW(sampler.observe(at::ones({}), 4), UserError) << "no graph";
  EXPECT_THROW(sampler.observe(c.loss(x, y), 3), UserError) << "not the batch";
  EXPECT_THROW(sampler.observe(c.loss(x, y), 0), UserError);
  EXPECT_THROW(sampler.observe(c.loss(x, y), 9), UserError) << "more than is outstanding";
  EXPECT_THROW(sampler.observe(c.loss(x, y).expand({2, 2}), 4), UserError) << "not a scalar";
  EXPECT_THROW(sampler.observe(c.loss(x, y), std::vector<std::size_t>{0, 1, 2, 12}), UserError);
  EXPECT_THROW(sampler.reset(13), UserError);
  EXPECT_EQ(sampler.core().state(), before);
}

TEST(TorchSampler, SumMeanPerExampleAndScaledLossesGiveTheSameVectors) {
  ::torch::manual_seed(4);
  ::torch::nn::Linear model(12, 5);
  const Tensor x = at::randn({6, 12});
  const Tensor y = at::randint(5, {6}, at::kLong);
  const auto loss = [&](at::Reduction::Reduction reduction) {
    return at::cross_entropy_loss(model->forward(x), y, {}, reduction);
  };
  const auto gram = [&](const Tensor& observed, const Tensor& differentiated, const ObserveOptions& options) {
    GradientGeometry geometry;
    geometry.observe(observed, 6, options);
    differentiated.backward();
    return geometry.gram();
  };
  const Tensor mean = loss(at::Reduction::Mean);
  const Tensor reference = gram(mean, mean, {});
  const Tensor scaled = loss(at::Reduction::Mean);
  EXPECT_TRUE(at::allclose(gram(scaled, scaled * 1024.0, {}), reference, 1e-4));
  const Tensor sum = loss(at::Reduction::Sum);
  EXPECT_TRUE(at::allclose(gram(sum, sum, {.sum = true}), reference, 1e-4));
  const Tensor each = loss(at::Reduction::None);
  EXPECT_TRUE(at::allclose(gram(each, each.mean(), {}), reference, 1e-4));
  const Tensor weighted = loss(at::Reduction::None);
  EXPECT_TRUE(at::allclose(gram(weighted, (weighted * at::arange(1, 7)).sum(), {}), reference, 1e-4));
}

TEST(TorchSampler, NamedExamplesMayComeInAnyOrder) {
  ::torch::manual_seed(6);
  const Case c = models::mlp();
  make_wide(c);
  const Data data = wide_data(c, 12);
  const auto run = [&](bool named) {
    Sampler sampler(12, "mean");
    sampler.next(12);
    const std::vector<std::size_t> all(sampler.core().order().begin(), sampler.core().order().end());
    for (std::size_t k = 0; k < 12; k += 4) {
      const std::vector<std::size_t> some(all.begin() + static_cast<std::ptrdiff_t>(k),
                                          all.begin() + static_cast<std::ptrdiff_t>(k + 4));
      const auto [x, y] = data.at_examples(some);
      const Tensor loss = c.loss(x, y);
      if (named)
        sampler.observe(loss, some);
      else
        sampler.observe(loss, 4);
      loss.backward();
    }
    return sampler.core().next_order();
  };
  EXPECT_EQ(run(true), run(false));
  Sampler sampler(12, "pair");
  sampler.next(12);
  const auto [x, y] = data.at_examples({3, 9, 0});
  const Tensor loss = c.loss(x, y);
  sampler.observe(loss, std::vector<std::size_t>{3, 9, 0});
  loss.backward();
  EXPECT_EQ(sampler.core().report().observed, 3U);
  const Tensor again = c.loss(x, y);
  EXPECT_THROW(sampler.observe(again, std::vector<std::size_t>{9, 1, 2}), UserError) << "9 a second time";
  EXPECT_THROW(sampler.observe(again, std::vector<std::size_t>{1, 1, 2}), UserError) << "1 twice";
}

/// The first block after a resume may be of another size than those before: a batch of one has rows only.
TEST(TorchSampler, AResumeBeforeAShortBatchGoesOnTheSame) {
  ::torch::manual_seed(8);
  ::torch::nn::Sequential net(::torch::nn::Linear(40, 200), ::torch::nn::ReLU(), ::torch::nn::Linear(200, 5));
  net->to(at::kDouble);
  const Tensor xs = at::randn({13, 40}, at::kDouble);
  const Tensor ys = at::randint(5, {13}, at::kLong);
  for (const char* spec : {"pair", "mean", "recursive; depth=1"}) {
    const auto step = [&](Sampler& sampler) {
      const auto examples = sampler.next(4);
      if (!examples) return false;
      const Tensor index =
          at::tensor(std::vector<std::int64_t>(examples->begin(), examples->end()), at::kLong);
      const Tensor loss =
          models::F::cross_entropy(net->forward(xs.index_select(0, index)), ys.index_select(0, index));
      sampler.observe(loss, index.size(0));
      loss.backward();
      return true;
    };
    Sampler whole(13, spec);
    for (int i = 0; i < 3; ++i) step(whole);
    Sampler before_last(13, spec);
    before_last.core().load(whole.core().state());
    step(whole);
    step(before_last);
    EXPECT_EQ(before_last.core().state(), whole.core().state()) << spec;
    Sampler at_the_end(13, spec);
    at_the_end.core().load(whole.core().state());
    for (Sampler* sampler : {&whole, &before_last, &at_the_end}) {
      sampler->reset();
      if (sampler == &at_the_end && sampler->core().position().handed_out == 13) sampler->core().begin();
      while (step(*sampler)) {
      }
    }
    EXPECT_EQ(before_last.core().state(), whole.core().state()) << spec;
    EXPECT_EQ(at_the_end.core().state(), whole.core().state()) << spec;
  }
}

TEST(TorchSampler, TheFileAndTheArchiveHoldTheSameState) {
  const Case c = models::mlp();
  const auto [x, y] = c.data(4);
  Sampler sampler(12, "pair");
  sampler.next(12);
  const Tensor loss = c.loss(x, y);
  sampler.observe(loss, 4);
  loss.backward();
  const test::TempFolder folder;
  const auto path = folder / "state.safetensors";
  save_state(sampler.core().state(), path);
  Sampler from_archive(12, "pair");
  load_archive(from_archive, archive_of(sampler));
  Sampler from_file(12, "pair");
  from_file.core().load(load_state(path));
  EXPECT_EQ(from_archive.core().state(), sampler.core().state());
  EXPECT_EQ(from_file.core().state(), sampler.core().state());
}

/// An archive with this in the place of a state.
template <class T>
std::string archive_with(const T& value) {
  ::torch::serialize::OutputArchive out;
  out.write("cdgrab.state", value);
  std::stringstream stream;
  out.save_to(stream);
  return stream.str();
}

Tensor row_of_bytes(std::size_t count) { return at::zeros({static_cast<std::int64_t>(count)}, at::kByte); }

/// load() says so, with these words in it, and the sampler is as it was.
template <class Refusal>
void expect_refused(const std::string& archive, const std::string& words) {
  Sampler sampler(12, "pair");
  sampler.next(3);
  const State before = sampler.core().state();
  try {
    load_archive(sampler, archive);
    ADD_FAILURE() << "taken, where " << words << " is to be refused";
  } catch (const Refusal& refusal) {
    EXPECT_NE(std::string(refusal.what()).find(words), std::string::npos) << refusal.what();
  }
  EXPECT_EQ(sampler.core().state(), before);
}

TEST(TorchSampler, AnArchiveOfSomethingElseIsRefused) {
  ::torch::serialize::OutputArchive of_a_model;
  ::torch::nn::Linear(2, 3)->save(of_a_model);
  std::stringstream stream;
  of_a_model.save_to(stream);
  expect_refused<FileError>(stream.str(), "it holds no cdgrab.state");
  for (const c10::IValue& none : {c10::IValue(), c10::IValue(5), c10::IValue("state")})
    expect_refused<FileError>(archive_with(none), "cdgrab.state");
  for (const Tensor& other : {at::zeros({300}), at::zeros({20, 15}, at::kByte), at::zeros({}, at::kByte),
                              at::zeros({1}, at::kByte).expand({300}),
                              at::zeros({600}, at::kByte).slice(0, 0, 600, 2), row_of_bytes(300).to_sparse()})
    expect_refused<FileError>(archive_with(other), "cdgrab.state");
  for (const std::size_t bytes : {0UL, 1UL, 7UL, 300UL})
    expect_refused<FileError>(archive_with(row_of_bytes(bytes)), "torch archive");
}

/// Torch's reader may see it first, and then the error is torch's.
TEST(TorchSampler, AnArchiveThatClaimsMoreBytesThanItHasIsRefused) {
  const std::string honest = archive_with(row_of_bytes(1000));
  const std::string thousand{'M', '\xE8', '\x03'};
  const std::string more{'M', '\xFF', '\xFF'};
  std::size_t claims = 0;
  for (std::size_t at = honest.find(thousand); at != std::string::npos; at = honest.find(thousand, at + 1)) {
    std::string hostile = honest;
    hostile.replace(at, more.size(), more);
    Sampler sampler(12, "pair");
    EXPECT_ANY_THROW(load_archive(sampler, hostile));
    ++claims;
  }
  EXPECT_GE(claims, 2U);  // the length of the row, and that of what it lies in
}

TEST(TorchSampler, AnArchiveOfAnotherSamplerIsRefusedByWhatDoesNotFit) {
  expect_refused<StateMismatch>(archive_of(Sampler(13, "pair")), "examples");
  expect_refused<StateMismatch>(archive_of(Sampler(12, "mean")), "spec");
  std::string damaged = archive_of(Sampler(12, "pair"));
  damaged[damaged.find("order.") + 1] = 'x';
  expect_refused<FileError>(damaged, "checksum");
}

TEST(TorchSampler, AStateOfAnotherModelIsRefused) {
  const Case small = models::mlp();
  const Case large = models::lenet();
  const auto observe = [](Sampler& sampler, const Case& c) {
    const auto [x, y] = c.data(4);
    const Tensor loss = c.loss(x, y);
    sampler.observe(loss, 4);
    loss.backward();
  };
  Sampler one(12, "pair");
  one.next(12);
  observe(one, small);
  Sampler other(12, "pair");
  other.next(12);
  observe(other, large);
  const State before = other.core().state();
  EXPECT_THROW(other.core().load(one.core().state()), StateMismatch);
  EXPECT_EQ(other.core().state(), before);
  Sampler fresh(12, "pair");
  fresh.core().load(one.core().state());
  EXPECT_THROW(observe(fresh, large), StateMismatch);
}

TEST(TorchSampler, GradientsGivenAndMicrobatchesAreVectorsToo) {
  Sampler given(8, "pair", {.initial_order = identity_order(8)});
  cdgrab::Sampler dense(8, parse_spec("pair"), {.initial_order = identity_order(8)});
  given.next(8);
  dense.next(8);
  const Tensor rows = at::randint(-5, 5, {8, 3, 2}, at::kFloat);
  given.observe_gradients({rows});
  dense.observe(Rows<float>{rows.const_data_ptr<float>(), 8, 6});
  EXPECT_EQ(given.core().next_order(), dense.next_order());
  EXPECT_THROW(given.observe_gradients({}), UserError);

  const Case c = models::mlp();
  Sampler units(16, "pair; unit=4");
  while (units.next(4)) {
    const auto [x, y] = c.data(4);
    for (const Tensor& p : c.parameters) p.mutable_grad() = Tensor();
    c.loss(x, y).backward();
    units.observe_microbatch(c.parameters);
  }
  EXPECT_EQ(units.core().report().observed, 4U);
  Sampler straddling(16, "pair; unit=4");
  straddling.next(6);
  EXPECT_THROW(straddling.observe_microbatch(c.parameters), UserError);
}

TEST(TorchSampler, FrozenAndDeselectedParametersDoNotCount) {
  ::torch::nn::Sequential net(::torch::nn::Linear(12, 8), ::torch::nn::ReLU(), ::torch::nn::Linear(8, 5));
  const Tensor x = at::randn({5, 12});
  const Tensor y = at::randint(5, {5}, at::kLong);
  const auto count = [&](const ParameterSet& parameters) {
    GradientGeometry geometry;
    const Tensor loss = models::F::cross_entropy(net->forward(x), y);
    geometry.observe(loss, 5, {.parameters = parameters});
    loss.backward();
    return geometry.parameters().size();
  };
  EXPECT_EQ(count({}), 4U);
  EXPECT_EQ(count(ParameterSet(*net)), 4U);
  EXPECT_EQ(count(ParameterSet(*net, "*.weight")), 2U);
  EXPECT_EQ(count(ParameterSet(*net, "0.*, 2.bias")), 3U);
  EXPECT_EQ(count(ParameterSet(*net, "!0.*")), 2U);
  EXPECT_EQ(count(ParameterSet(*net, "*, !*.bias, 2.?ias")), 3U);
  EXPECT_THROW(ParameterSet(*net, "head.*"), UserError);
  net->named_parameters()["0.weight"].set_requires_grad(false);
  EXPECT_EQ(count({}), 3U);
  EXPECT_THROW(count(ParameterSet(*net, "0.weight")), UserError) << "frozen";
}

TEST(TorchSampler, WhatNoRuleCoversIsListedInOneMessageIfStrict) {
  struct Net : ::torch::nn::Module {
    Net() {
      words = register_module("words", ::torch::nn::EmbeddingBag(7, 12));
      mix = register_parameter("mix", at::randn({4, 12, 12}));
    }
    ::torch::nn::EmbeddingBag words{nullptr};
    Tensor mix;
  };
  Net net;
  const Tensor h = net.words(at::randint(7, {5, 3}, at::kLong));
  const Tensor loss = at::bilinear(h, h, net.mix).sum(1).mean();
  GradientGeometry geometry;
  const std::string named = test::message_of<UserError>(
      [&] { geometry.observe(loss, 5, {.parameters = ParameterSet(net), .strict = true}); });
  EXPECT_NE(named.find("EmbeddingBagBackward0 with words.weight (7x12)"), std::string::npos) << named;
  EXPECT_NE(named.find("mix (4x12x12)"), std::string::npos) << named;
  EXPECT_NE(named.find("observe_gradients"), std::string::npos) << named;
  const std::string nameless =
      test::message_of<UserError>([&] { geometry.observe(loss, 5, {.strict = true}); });
  EXPECT_NE(nameless.find("a parameter of shape 4x12x12"), std::string::npos) << nameless;
}

TEST(TorchSampler, ABatchThatCannotBeToldApartIsRefusedAndCanBeNamed) {
  // Both axes of what is reduced have the length of the batch, and nothing tells them apart.
  const Tensor scale = at::ones({1}).set_requires_grad(true);
  const Tensor x = at::randn({5, 5});
  const auto loss = [&] { return (x * scale).pow(2).mean(); };
  GradientGeometry geometry;
  const std::string ambiguous = test::message_of<UserError>([&] { geometry.observe(loss(), 5); });
  EXPECT_NE(ambiguous.find("batch_axis"), std::string::npos) << ambiguous;
  for (const std::int64_t axis : {0, 1}) {
    const Tensor named = loss();
    geometry.observe(named, 5, {.batch_axis = axis});
    named.backward();
    EXPECT_TRUE(at::allclose(geometry.rows().squeeze(1), 2 * x.pow(2).mean(1 - axis), 1e-5)) << axis;
  }
  const std::string none = test::message_of<UserError>([&] { geometry.observe(loss(), 3); });
  EXPECT_NE(none.find("the 3 examples"), std::string::npos) << none;
}

TEST(TorchSampler, ALoopThatMakesNewParametersEveryStepIsRefused) {
  Sampler sampler(12, "pair");
  sampler.next(12);
  const Tensor x = at::randn({4, 3});
  const auto observe = [&](const Tensor& w) {
    const Tensor loss = x.mm(w).pow(2).sum(1).mean();
    sampler.observe(loss, 4);
    loss.backward();
  };
  observe(at::randn({3, 2}).set_requires_grad(true));
  EXPECT_THROW(observe(at::randn({3, 2}).set_requires_grad(true)), UserError);
}

/// Experts that only some batches reach: zero where they are not used.
TEST(TorchSampler, AParameterMayAppearLater) {
  ::torch::manual_seed(12);
  const Tensor shared = at::randn({3, 2}, at::kDouble).set_requires_grad(true);
  const Tensor expert = at::randn({3, 2}, at::kDouble).set_requires_grad(true);
  const Tensor x = at::randn({12, 3}, at::kDouble);
  Sampler sampler(12, "pair", {.initial_order = identity_order(12)});
  cdgrab::Sampler dense(12, parse_spec("pair"), {.initial_order = identity_order(12)});
  sampler.next(12);
  dense.next(12);
  for (std::int64_t k = 0; k < 12; k += 4) {
    const Tensor some = x.slice(0, k, k + 4);
    const Tensor out = k == 4 ? some.mm(shared) + some.mm(expert) : some.mm(shared);
    const Tensor loss = out.pow(2).sum(1).mean();
    sampler.observe(loss, 4);
    loss.backward();
    const Tensor of_shared = 2 * at::einsum("bi,bo->bio", {some, out.detach()}).reshape({4, -1});
    const Tensor rows = at::cat({of_shared, k == 4 ? of_shared : at::zeros_like(of_shared)}, 1).contiguous();
    dense.observe(Rows<double>{rows.const_data_ptr<double>(), 4, 12});
  }
  EXPECT_EQ(sampler.core().next_order(), dense.next_order());
}

/// Two heads of one shape, used in turn; a state saved in between is loaded beside a model met from its other
/// head on.
TEST(TorchSampler, HeadsUsedInTurnAreKnownByNameAfterAResumeOrRefused) {
  ::torch::manual_seed(13);
  const Tensor trunk = at::randn({3, 4}, at::kDouble).set_requires_grad(true);
  const std::array heads = {at::randn({4, 2}, at::kDouble).set_requires_grad(true),
                            at::randn({4, 2}, at::kDouble).set_requires_grad(true)};
  const Tensor x = at::randn({20, 3}, at::kDouble);
  const ParameterSet names({{"trunk", trunk}, {"left", heads[0]}, {"right", heads[1]}});
  const auto observe = [&](Sampler& sampler, std::int64_t k, const ParameterSet& parameters) {
    const Tensor out =
        x.slice(0, 4 * k, 4 * k + 4).mm(trunk).tanh().mm(heads[static_cast<std::size_t>(k % 2)]);
    const Tensor loss = out.pow(2).sum(1).mean();
    sampler.observe(loss, 4, {.parameters = parameters});
    loss.backward();
  };
  for (const bool named : {true, false}) {
    const ParameterSet parameters = named ? names : ParameterSet();
    Sampler whole(20, "pair", {.initial_order = identity_order(20)});
    whole.next(20);
    for (std::int64_t k = 0; k < 3; ++k) observe(whole, k, parameters);
    Sampler resumed(20, "pair");
    resumed.load_state(whole.core().state());
    resumed.next(20);
    if (!named) {
      EXPECT_THROW(observe(resumed, 3, parameters), StateMismatch);
      continue;
    }
    for (std::int64_t k = 3; k < 5; ++k) {
      observe(whole, k, parameters);
      observe(resumed, k, parameters);
    }
    EXPECT_EQ(resumed.core().next_order(), whole.core().next_order());
    EXPECT_EQ(resumed.core().state(), whole.core().state());
  }
}

TEST(TorchSampler, TimingsSayWhereTheTimeWent) {
  ::torch::nn::Sequential net(::torch::nn::Linear(512, 520), ::torch::nn::Tanh(),
                              ::torch::nn::Linear(520, 3));
  const Case c = models::classifier("a layer as factors, and one as rows", net, {512}, 3);
  Sampler sampler(8, "pair", {.record_timings = true});
  sampler.next(8);
  const auto [x, y] = c.data(8);
  const Tensor loss = c.loss(x, y);
  sampler.observe(loss, 8);
  loss.backward();
  const ObserveTimings t = sampler.timings();
  for (const double seconds : {t.walk, t.gradients, t.products, t.signs, t.update}) EXPECT_GT(seconds, 0.0);
  Sampler off(8, "pair");
  EXPECT_EQ(off.timings().walk, 0.0);
}

}  // namespace
}  // namespace cdgrab::torch
