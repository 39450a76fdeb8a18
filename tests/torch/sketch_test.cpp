// SPDX-License-Identifier: Apache-2.0
// Sketches of a layer's factors: against the core's sketch of formed rows, and against dull principal
// components of rows.
#include "cdgrab/sketch.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <sstream>

#include "cdgrab/error.hpp"
#include "cdgrab/self_communicator.hpp"
#include "cdgrab/torch/distributed_sampler.hpp"
#include "cdgrab/torch/sampler.hpp"
#include "models/models.hpp"

namespace cdgrab::torch {
namespace {

using at::Tensor;
using models::Case;

void make_wide(const Case& c) {
  for (const Tensor& p : c.parameters) p.set_data(p.data().to(at::kDouble));
}

std::pair<Tensor, Tensor> wide_data(const Case& c, std::int64_t n) {
  auto [x, y] = c.data(n);
  return {x.is_floating_point() ? x.to(at::kDouble) : x, y};
}

std::pair<Tensor, Tensor> at_examples(const std::pair<Tensor, Tensor>& data,
                                      const std::vector<std::size_t>& examples) {
  const Tensor index = at::tensor(std::vector<std::int64_t>(examples.begin(), examples.end()), at::kLong);
  return {data.first.index_select(0, index), data.second.index_select(0, index)};
}

std::vector<Index> order_of(const cdgrab::Sampler& sampler) {
  return {sampler.order().begin(), sampler.order().end()};
}

std::vector<Shape> shapes_of(const std::vector<Tensor>& parameters) {
  std::vector<Shape> shapes;
  for (const Tensor& p : parameters) shapes.emplace_back(p.sizes().begin(), p.sizes().end());
  return shapes;
}

class KronOfFactors : public testing::TestWithParam<std::size_t> {};

/// The register of a block whose vectors all get the plus sign is their sum: it is compared, and the orders.
TEST_P(KronOfFactors, IsTheCoresKronOfFormedRows) {
  ::torch::manual_seed(3);
  const Case c = models::all()[GetParam()];
  make_wide(c);
  constexpr std::size_t kExamples = 41;
  const auto data = wide_data(c, kExamples);
  const Spec spec = parse_spec("pair; sketch=kron:3");
  Sampler sampler(kExamples, print_spec(spec), {.seed = 5});
  std::optional<cdgrab::Sampler> dense;
  ::torch::optim::SGD optimizer(c.parameters, ::torch::optim::SGDOptions(0.01));
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.reset();
    if (dense) dense->begin();
    while (const auto examples = sampler.next(7)) {
      const auto [x, y] = at_examples(data, *examples);
      const auto batch = static_cast<std::int64_t>(examples->size());
      const Tensor loss = c.loss(x, y);
      GradientGeometry geometry;
      geometry.observe(loss, batch);
      sampler.observe(loss, batch);
      optimizer.zero_grad();
      loss.backward();
      if (!dense) {
        dense.emplace(kExamples, spec, SamplerOptions{.seed = 5, .shapes = shapes_of(geometry.parameters())});
        dense->begin();
      }
      const Tensor rows = geometry.rows().contiguous();
      ASSERT_EQ(dense->next(7).size(), examples->size());
      dense->observe(Rows<double>{rows.const_data_ptr<double>(), examples->size(),
                                  static_cast<std::size_t>(rows.size(1))});
      const State here = sampler.core().state();
      const State there = dense->state();
      const auto dim = static_cast<std::size_t>(there.integer("geometry.dim"));
      const Tensor expected = at::tensor(there.elements<double>("accumulator.0", dim), at::kDouble);
      std::vector<double> got;
      for (const auto& [key, value] : here.entries())
        if (key.starts_with("rows.") && key.ends_with("accumulator.0"))
          for (const double v : here.elements<double>(key, std::get<Array>(value).bytes.size() / 8))
            got.push_back(v);
      ASSERT_EQ(got.size(), dim) << c.name;
      EXPECT_LE((at::tensor(got, at::kDouble) - expected).abs().max().item<double>(),
                1e-11 * (1.0 + expected.abs().max().item<double>()))
          << c.name;
      optimizer.step();
    }
    ASSERT_EQ(sampler.core().next_order(), dense->next_order()) << c.name << ", epoch " << epoch;
  }
}

INSTANTIATE_TEST_SUITE_P(All, KronOfFactors, testing::Range(std::size_t{0}, models::all().size()),
                         [](const auto& instance) {
                           std::string name = models::all()[instance.param].name;
                           std::erase_if(name, [](char ch) {
                             return std::isalnum(static_cast<unsigned char>(ch)) == 0;
                           });
                           return name;
                         });

/// A matrix of a state, as (-1, columns).
Tensor matrix_of(const State& state, const std::string& key, std::int64_t columns) {
  const std::size_t size = state.array(key).bytes.size() / sizeof(double);
  return at::tensor(state.elements<double>(key, size), at::kDouble).view({-1, columns});
}

/// The r leading eigenvectors of a covariance matrix.
Tensor leading(const Tensor& covariance, std::int64_t r) {
  return std::get<1>(at::linalg_eigh(covariance)).slice(1, covariance.size(0) - r);
}

/// 60 examples of a linear layer of 12 inputs whose variances fall off, and some more that are zero, all of
/// them one block.
struct LinearTask {
  explicit LinearTask(std::int64_t outputs, std::int64_t zeros = 0)
      : weight(at::randn({outputs, 12 + zeros}, at::kDouble).requires_grad_(true)),
        x(at::constant_pad_nd(at::randn({60, 12}, at::kDouble) * at::pow(2.0, -at::arange(12, at::kDouble)),
                              {0, zeros})),
        target(at::randn({60, outputs}, at::kDouble) * at::pow(2.0, -at::arange(outputs, at::kDouble))) {}

  void epoch(Sampler& sampler) const {
    sampler.reset();
    const auto examples = sampler.next(60);
    const auto [inputs, targets] = at_examples({x, target}, *examples);
    const Tensor loss = (at::mm(inputs, weight.t()) - targets).square().sum(1).mean();
    sampler.observe(loss, 60);
    loss.backward();
  }
  /// (60, outputs, inputs), less their mean.
  [[nodiscard]] Tensor centred_gradients() const {
    const Tensor errors = 2.0 * (at::mm(x, weight.detach().t()) - target);
    const Tensor rows = errors.unsqueeze(2) * x.unsqueeze(1);
    return rows - rows.mean(0, true);
  }

  Tensor weight;
  Tensor x;
  Tensor target;
};

TEST(PcaOfFactors, FindsThePrincipalDirectionsOfTheInputsInAFewEpochs) {
  ::torch::manual_seed(1);
  const LinearTask task(2, 300);  // no more outputs than r: they stay as they are
  Sampler sampler(60, "pair; sketch=pca:3", {.seed = 2});
  for (int epoch = 0; epoch < 8; ++epoch) task.epoch(sampler);
  sampler.reset();
  task.epoch(sampler);
  const Tensor rows = task.centred_gradients().slice(2, 0, 12).reshape({-1, 12});
  const Tensor expected = leading(at::mm(rows.t(), rows), 3);
  const Tensor all = matrix_of(sampler.core().state(), "sketch.0/right", 3);
  EXPECT_LT(all.slice(0, 12).abs().max().item<double>(), 1e-12);
  const Tensor found = all.slice(0, 0, 12);
  const Tensor difference = at::mm(found, found.t()) - at::mm(expected, expected.t());
  EXPECT_LT(difference.abs().max().item<double>(), 1e-5);
  EXPECT_FALSE(sampler.core().state().contains("sketch.0/left"));
}

TEST(PcaOfFactors, WhatIsSmallerThanItsMapsStaysWhole) {
  ::torch::manual_seed(1);
  const LinearTask task(2);
  Sampler sketched(60, "pair; sketch=pca:3", {.seed = 2});
  Sampler whole(60, "pair", {.seed = 2});
  for (int epoch = 0; epoch < 3; ++epoch) {
    task.epoch(sketched);
    task.epoch(whole);
    EXPECT_EQ(order_of(sketched.core()), order_of(whole.core()));
  }
  EXPECT_FALSE(sketched.core().state().contains("sketch.0/right"));
}

TEST(PcaOfFactors, KeepsAsMuchOfBothSidesAsAlternatingEigenvectorsDo) {
  ::torch::manual_seed(1);
  const LinearTask task(7);
  Sampler sampler(60, "pair; sketch=pca:3", {.seed = 2});
  for (int epoch = 0; epoch < 10; ++epoch) task.epoch(sampler);
  const Tensor rows = task.centred_gradients();
  Tensor left = at::eye(7, at::kDouble);
  Tensor right;
  for (int step = 0; step < 50; ++step) {
    const Tensor of_right = at::matmul(left.t(), rows).reshape({-1, 12});
    right = leading(at::mm(of_right.t(), of_right), 3);
    const Tensor of_left = at::matmul(rows, right).transpose(1, 2).reshape({-1, 7});
    left = leading(at::mm(of_left.t(), of_left), 3);
  }
  const auto kept = [&](const Tensor& l, const Tensor& r) {
    return at::matmul(at::matmul(l.t(), rows), r).square().sum().item<double>();
  };
  const State state = sampler.core().state();
  EXPECT_GT(kept(matrix_of(state, "sketch.0/left", 3), matrix_of(state, "sketch.0/right", 3)),
            0.999 * kept(left, right));
}

std::string archive_of(const Sampler& sampler) {
  ::torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream stream;
  out.save_to(stream);
  return stream.str();
}

/// The rest of two epochs; the archive of every step goes to `archives`.
State finish_two_epochs(Sampler& sampler, const Case& c, const std::pair<Tensor, Tensor>& data,
                        std::vector<std::string>* archives) {
  for (;;) {
    sampler.reset();
    if (sampler.core().epoch() == 2) return sampler.core().state();
    while (const auto examples = sampler.next(4)) {
      const auto [x, y] = at_examples(data, *examples);
      const Tensor loss = c.loss(x, y);
      sampler.observe(loss, x.size(0));
      loss.backward();
      if (archives != nullptr) archives->push_back(archive_of(sampler));
    }
  }
}

TEST(PcaOfFactors, AResumeAtAnyStepOfTwoEpochsIsAsIfItHadNeverStopped) {
  for (const Case& c : {models::mlp(), models::convolutions(), models::gpt(5)}) {
    ::torch::manual_seed(4);
    constexpr std::size_t kExamples = 39;
    const auto data = c.data(kExamples);
    const auto make = [&] { return Sampler(kExamples, "pair; sketch=pca:2", {.seed = 1}); };
    std::vector<std::string> archives;
    Sampler whole = make();
    const State expected = finish_two_epochs(whole, c, data, &archives);
    ASSERT_EQ(archives.size(), 20U);
    for (const std::string& archive : archives) {
      Sampler resumed(kExamples, "pair; sketch=pca:2", {.seed = 99});
      std::stringstream stream(archive);
      ::torch::serialize::InputArchive in;
      in.load_from(stream);
      resumed.load(in);
      EXPECT_TRUE(finish_two_epochs(resumed, c, data, nullptr) == expected) << c.name;
    }
  }
}

TEST(PcaOfFactors, TheMapsStayWithinAnEpochAndChangeWithIt) {
  ::torch::manual_seed(4);
  const Case c = models::mlp();
  make_wide(c);
  const auto data = wide_data(c, 24);
  Sampler sampler(24, "pair; sketch=pca:2");
  std::vector<std::vector<Tensor>> maps(3);
  for (auto& of_epoch : maps) {
    sampler.reset();
    while (const auto examples = sampler.next(6)) {
      const auto [x, y] = at_examples(data, *examples);
      const Tensor loss = c.loss(x, y);
      sampler.observe(loss, 6);
      loss.backward();
      of_epoch.push_back(matrix_of(sampler.core().state(), "sketch.1/right", 2));
    }
  }
  for (const auto& of_epoch : maps)
    for (const Tensor& map : of_epoch) EXPECT_TRUE(at::equal(map, of_epoch.front()));
  EXPECT_FALSE(at::equal(maps[0].front(), maps[1].front()));
  EXPECT_FALSE(at::equal(maps[1].front(), maps[2].front()));
}

TEST(SketchOfFactors, RecordingWholeVectorsChangesNoOrder) {
  for (const char* spec : {"pair; sketch=kron:3", "pair; sketch=pca:3", "pair; sketch=kron:3; every=2"}) {
    ::torch::manual_seed(4);
    const Case c = models::lenet();
    make_wide(c);
    const auto data = wide_data(c, 16);
    Sampler plain(16, spec);
    Sampler recording(16, spec, {.record_herding = true, .record_norms = true});
    for (int epoch = 0; epoch < 3; ++epoch) {
      plain.reset();
      recording.reset();
      ASSERT_EQ(order_of(plain.core()), order_of(recording.core())) << spec;
      while (const auto examples = plain.next(4)) {
        ASSERT_EQ(recording.next(4), examples);
        const auto [x, y] = at_examples(data, *examples);
        const Tensor loss = c.loss(x, y);
        plain.observe(loss, 4);
        recording.observe(loss, 4);
        loss.backward();
      }
    }
    recording.end_epoch();
    ASSERT_TRUE(recording.core().herding().has_value());
    EXPECT_GT(recording.core().herding()->used.l2, 0.0);
    EXPECT_GT(recording.core().norms()[0], 0.0);
  }
}

/// One matrix of all numbers with the shapes named, and a tensor per parameter.
TEST(SketchOfFactors, GivenRowsAreSketchedAsTheCoreDoes) {
  ::torch::manual_seed(2);
  const Tensor rows = at::randn({20, 9 * 8 + 5}, at::kDouble);
  const SamplerOptions options{.seed = 3, .shapes = {{9, 8}, {5}}};
  Sampler in_one(20, "pair; sketch=kron:4", options);
  Sampler in_two(20, "pair; sketch=kron:4", {.seed = 3});
  cdgrab::Sampler dense(20, parse_spec("pair; sketch=kron:4"), options);
  in_one.next(20);
  in_two.next(20);
  dense.next(20);
  in_one.observe_gradients({rows});
  in_two.observe_gradients({rows.slice(1, 0, 72).reshape({20, 9, 8}), rows.slice(1, 72)});
  dense.observe(Rows<double>{rows.const_data_ptr<double>(), 20, 77});
  EXPECT_EQ(in_one.core().next_order(), dense.next_order());
  EXPECT_EQ(in_two.core().next_order(), dense.next_order());
  Sampler wrong(20, "pair; sketch=kron:4", {.shapes = {{9, 8}, {6}}});
  wrong.next(20);
  EXPECT_THROW(wrong.observe_gradients({rows}), UserError);
}

TEST(SketchOfFactors, ABlockThatIsNotFiniteTeachesNothing) {
  ::torch::manual_seed(2);
  Sampler sampler(60, "pair; sketch=pca:3", {.seed = 2});
  Tensor rows = at::randn({60, 7, 12}, at::kDouble);
  rows[7][0][0] = std::numeric_limits<double>::quiet_NaN();
  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.reset();
    sampler.next(60);
    sampler.observe_gradients({rows});
    EXPECT_EQ(sampler.core().report().not_finite, 1U);
  }
  EXPECT_TRUE(matrix_of(sampler.core().state(), "sketch.0/right", 3).isfinite().all().item<bool>());
}

TEST(SketchOfFactors, ManyWorkersSketchFactorsAsTheyDoRows) {
  for (const char* spec : {"cd-pair; sketch=kron:3", "id-pair; sketch=kron:3"}) {
    ::torch::manual_seed(4);
    const Case c = models::mlp();
    make_wide(c);
    const auto data = wide_data(c, 24);
    std::optional<cdgrab::DistributedSampler> dense;
    auto communicator = std::make_shared<SelfCommunicator>();
    DistributedSampler sampler(Shares::strided(24, 2), spec, communicator, {.seed = 7});
    for (int epoch = 0; epoch < 3; ++epoch) {
      sampler.begin();
      if (dense) dense->begin();
      for (int step = 0; step < 3; ++step) {
        for (const std::size_t worker : {0, 1}) {
          const auto examples = sampler.next(worker, 4);
          const auto [x, y] = at_examples(data, examples);
          const Tensor loss = c.loss(x, y);
          GradientGeometry geometry;
          geometry.observe(loss, 4);
          sampler.observe(loss, 4, {}, worker);
          loss.backward();
          if (!dense) {
            dense.emplace(Shares::strided(24, 2), parse_spec(spec), *communicator,
                          DistributedOptions{.seed = 7, .shapes = shapes_of(geometry.parameters())});
            dense->begin();
          }
          const Tensor rows = geometry.rows().contiguous();
          const auto named = dense->next(worker, 4);
          ASSERT_EQ(std::vector<std::size_t>(named.begin(), named.end()), examples) << spec << epoch;
          dense->deposit(
              worker, Rows<double>{rows.const_data_ptr<double>(), 4, static_cast<std::size_t>(rows.size(1))});
        }
        sampler.step();
        dense->step();
      }
    }
  }
}

TEST(SketchOfFactors, DirectionsThatRanksWouldHaveToAgreeOnAreRefused) {
  const auto make = [](const char* spec) {
    return DistributedSampler(Shares::strided(24, 2), spec, std::make_shared<SelfCommunicator>());
  };
  EXPECT_THROW(make("cd-pair; sketch=pca:3"), UserError);
  EXPECT_NO_THROW(make("id-pair; sketch=pca:3"));
}

}  // namespace
}  // namespace cdgrab::torch
