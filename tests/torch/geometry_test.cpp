// SPDX-License-Identifier: Apache-2.0
// What GradientGeometry computes, against gradients of one example at a time and plain loops over them.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/torch/gradient_geometry.hpp"
#include "models/models.hpp"
#include "tests/unit/temp_folder.hpp"

namespace cdgrab::torch {
namespace {

using at::Tensor;
using models::Case;

/// gradients[i][p]: of example i's own loss for parameter p, as float64 numbers; zeros where it is not used.
using Gradients = std::vector<std::vector<Tensor>>;

using Loss = std::function<Tensor(const Tensor& x, const Tensor& y)>;

Gradients one_at_a_time(const Loss& loss_of, const Tensor& x, const Tensor& y,
                        const std::vector<Tensor>& parameters) {
  Gradients all;
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    const Tensor loss = loss_of(x.slice(0, i, i + 1), y.slice(0, i, i + 1));
    const auto gradients = ::torch::autograd::grad({loss}, parameters, {}, false, false, true);
    auto& row = all.emplace_back();
    for (std::size_t p = 0; p < parameters.size(); ++p)
      row.push_back((gradients[p].defined() ? gradients[p] : at::zeros_like(parameters[p]))
                        .to(at::kDouble)
                        .reshape({-1}));
  }
  return all;
}

double dull_inner(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double total = 0.0;
  for (std::size_t p = 0; p < a.size(); ++p) total += at::dot(a[p], b[p].reshape({-1})).item<double>();
  return total;
}

Tensor dull_products(const Gradients& a, const Gradients& b) {
  Tensor out =
      at::zeros({static_cast<std::int64_t>(a.size()), static_cast<std::int64_t>(b.size())}, at::kDouble);
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < b.size(); ++j)
      out[static_cast<std::int64_t>(i)][static_cast<std::int64_t>(j)] = dull_inner(a[i], b[j]);
  return out;
}

Tensor dull_norms(const Gradients& a) {
  std::vector<double> all;
  for (const auto& row : a) all.push_back(std::sqrt(dull_inner(row, row)));
  return at::tensor(all, at::kDouble);
}

std::vector<Tensor> dull_sum(const Gradients& a, const std::vector<double>& weights) {
  std::vector<Tensor> sums;
  for (std::size_t p = 0; p < a.front().size(); ++p) {
    sums.push_back(at::zeros_like(a.front()[p]));
    for (std::size_t i = 0; i < a.size(); ++i) sums[p].add_(a[i][p], weights[i]);
  }
  return sums;
}

/// Relative to the largest entry; `scale` where that says nothing.
double error(const Tensor& a, const Tensor& b, double scale = 0.0) {
  EXPECT_EQ(a.sizes(), b.sizes());
  if (a.sizes() != b.sizes() || a.numel() == 0) return 0.0;
  return ((a.to(at::kDouble) - b).abs().max() / b.abs().max().clamp_min(std::max(scale, 1e-30)))
      .item<double>();
}

constexpr std::size_t kNone = 0;
constexpr std::size_t kMuch = std::size_t{1} << 30;

GradientGeometry computed(const Loss& loss_of, const Tensor& x, const Tensor& y, std::size_t budget,
                          const ParameterSet& parameters = {}) {
  GradientGeometry geometry;
  geometry.compute(loss_of(x, y), x.size(0), {.parameters = parameters, .budget = budget});
  return geometry;
}

/// cross() in whatever forms the two sides are held, and its transpose.
void expect_cross(const Loss& first, const std::pair<Tensor, Tensor>& a, const Loss& second,
                  const std::pair<Tensor, Tensor>& b, const std::vector<Tensor>& parameters, double tolerance,
                  const std::string& name) {
  const Gradients left = one_at_a_time(first, a.first, a.second, parameters);
  const Gradients right = one_at_a_time(second, b.first, b.second, parameters);
  const Tensor expected = dull_products(left, right);
  const double scale = (dull_norms(left).max() * dull_norms(right).max()).item<double>();
  for (const std::size_t budget : {kNone, kMuch})
    for (const std::size_t other_budget : {kNone, kMuch}) {
      const auto mine = computed(first, a.first, a.second, budget);
      const auto theirs = computed(second, b.first, b.second, other_budget);
      EXPECT_LT(error(mine.cross(theirs), expected, scale), tolerance) << name;
      EXPECT_LT(error(theirs.cross(mine), expected.t(), scale), tolerance) << name;
    }
}

void expect_norms_and_sums(const Loss& loss_of, const Tensor& x, const Tensor& y, double tolerance,
                           const std::string& name) {
  for (const std::size_t budget : {kNone, kMuch}) {
    const auto geometry = computed(loss_of, x, y, budget);
    const auto parameters = geometry.parameters();
    const Gradients gradients = one_at_a_time(loss_of, x, y, parameters);
    EXPECT_LT(error(geometry.norms(), dull_norms(gradients)), tolerance) << name;
    std::vector<double> weights;
    for (std::int64_t i = 0; i < x.size(0); ++i) weights.push_back(i % 3 == 1 ? 0.0 : 0.5 - 0.7 * double(i));
    const auto sums = geometry.weighted_sum(at::tensor(weights, at::kDouble));
    const auto expected = dull_sum(gradients, weights);
    ASSERT_EQ(sums.size(), parameters.size());
    for (std::size_t p = 0; p < sums.size(); ++p) {
      EXPECT_EQ(sums[p].sizes(), parameters[p].sizes());
      EXPECT_EQ(sums[p].scalar_type(), parameters[p].scalar_type());
      EXPECT_LT(error(sums[p].reshape({-1}), expected[p], 1e-3), tolerance) << name << " " << p;
    }
  }
}

class Geometry : public testing::TestWithParam<std::tuple<std::size_t, std::int64_t, bool>> {
 protected:
  Geometry() {
    const auto [index, batch, wide] = GetParam();
    ::torch::manual_seed(7);
    model_ = models::all()[index];
    batch_ = batch;
    tolerance_ = wide ? 1e-10 : 1e-5;
    if (wide)
      for (const Tensor& p : model_.parameters) p.set_data(p.data().to(at::kDouble));
    wide_ = wide;
  }
  [[nodiscard]] std::pair<Tensor, Tensor> data(std::int64_t batch) const {
    auto [x, y] = model_.data(batch);
    return {wide_ && x.is_floating_point() ? x.to(at::kDouble) : x, y};
  }
  Case model_;
  std::int64_t batch_ = 0;
  bool wide_ = false;
  double tolerance_ = 0.0;
};

TEST_P(Geometry, CrossEqualsProductsOfGradientsOfOneExampleAtATime) {
  const auto training = data(batch_);
  for (const std::int64_t other : {1, 4})
    expect_cross(model_.loss, training, model_.loss, data(other), model_.parameters, tolerance_, model_.name);
}

TEST_P(Geometry, NormsAndWeightedSumsEqualThoseOfOneExampleAtATime) {
  const auto [x, y] = data(batch_);
  expect_norms_and_sums(model_.loss, x, y, tolerance_, model_.name);
}

TEST_P(Geometry, PartsAddUpToTheWhole) {
  const auto [x, y] = data(batch_);
  std::vector<std::pair<std::string, Tensor>> named;
  for (std::size_t p = 0; p < model_.parameters.size(); ++p)
    named.emplace_back("p" + std::to_string(p) + ".x", model_.parameters[p]);
  const auto geometry = computed(model_.loss, x, y, kNone, ParameterSet(named));
  const auto names = geometry.names();
  ASSERT_EQ(names.size(), geometry.parameters().size());
  Tensor gram = at::zeros({batch_, batch_}, at::kDouble);
  Tensor squares = at::zeros({batch_}, at::kDouble);
  for (std::size_t p = 0; p < names.size(); ++p) {
    const GradientGeometry part = geometry.part(names[p]);
    ASSERT_EQ(part.parameters().size(), 1U);
    EXPECT_TRUE(part.parameters()[0].is_same(geometry.parameters()[p]));
    const Gradients own = one_at_a_time(model_.loss, x, y, part.parameters());
    EXPECT_LT(error(part.gram(), dull_products(own, own), 1e-3), tolerance_) << names[p];
    EXPECT_LT(error(part.cross(geometry), dull_products(own, own), 1e-3), tolerance_) << names[p];
    gram += part.gram();
    squares += part.norms().to(at::kDouble).square();
  }
  EXPECT_LT(error(geometry.gram(), gram), tolerance_);
  EXPECT_LT(error(geometry.norms(), squares.sqrt()), tolerance_);
  EXPECT_EQ(geometry.part("!" + names[0]).parameters().size(), names.size() - 1);
}

TEST_P(Geometry, DirectionsByPlaceByNameAndSeveralAtOnceGiveTheSameProducts) {
  const auto [x, y] = data(batch_);
  std::vector<std::pair<std::string, Tensor>> named;
  for (std::size_t p = 0; p < model_.parameters.size(); ++p)
    named.emplace_back(std::to_string(p), model_.parameters[p]);
  for (const std::size_t budget : {kNone, kMuch}) {
    const auto geometry = computed(model_.loss, x, y, budget, ParameterSet(named));
    const auto parameters = geometry.parameters();
    const Gradients gradients = one_at_a_time(model_.loss, x, y, parameters);
    std::vector<Tensor> directions;
    std::vector<std::pair<std::string, Tensor>> by_name = {{"of no parameter", at::ones({3})}};
    Gradients dull(3);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      std::vector<std::int64_t> shape = parameters[p].sizes().vec();
      shape.insert(shape.begin(), 3);
      directions.push_back(at::randn(shape, at::kDouble));
      by_name.emplace_back(geometry.names()[p], directions[p]);
      for (std::size_t k = 0; k < 3; ++k) dull[k].push_back(directions[p][static_cast<std::int64_t>(k)]);
    }
    const Tensor expected = dull_products(gradients, dull);
    EXPECT_LT(error(geometry.inner(directions), expected), tolerance_);
    EXPECT_LT(error(geometry.inner(by_name), expected), tolerance_);
    EXPECT_LT(error(geometry.inner(dull[2]), expected.select(1, 2)), tolerance_);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Geometry,
                         testing::Combine(testing::Range(std::size_t{0}, models::all().size()),
                                          testing::Values(1, 2, 5), testing::Bool()),
                         [](const auto& instance) {
                           return models::all()[std::get<0>(instance.param)].name + "B" +
                                  std::to_string(std::get<1>(instance.param)) +
                                  (std::get<2>(instance.param) ? "Double" : "Float");
                         });

/// Losses of one or two large float64 parameters, so that products by factors are the cheaper ones.
struct Wide {
  Tensor table = parameter({300, 6});
  Tensor weight = parameter({40, 60});
  Tensor kernel = parameter({16, 12, 3, 3});
  Tensor vector = parameter({50});

  static Tensor parameter(const std::vector<std::int64_t>& shape) {
    return (0.3 * at::randn(shape, at::kDouble)).set_requires_grad(true);
  }
  [[nodiscard]] Tensor looked_up(const Tensor& indices, const Tensor& y) const {
    const Tensor h = at::embedding(table, indices);
    return (h.square().sum({1, 2}) * y).mean();
  }
  [[nodiscard]] Tensor multiplied(const Tensor& x, const Tensor& y) const {
    return (at::linear(x, table).tanh().sum({1, 2}) * y).mean();
  }
  [[nodiscard]] Tensor tied(const Tensor& indices, const Tensor& y) const {
    return (at::linear(at::embedding(table, indices).tanh(), table).tanh().sum({1, 2}) * y).mean();
  }
  [[nodiscard]] Tensor linear(const Tensor& x, const Tensor& y) const {
    return (at::linear(x, weight).tanh().sum({1, 2}) * y).mean();
  }
  [[nodiscard]] Tensor convolved(const Tensor& x, const Tensor& y) const {
    return (at::conv2d(x, kernel).tanh().sum({1, 2, 3}) * y).mean();
  }
  [[nodiscard]] Tensor entries(const Tensor& indices, const Tensor& y) const {
    return (vector.index({indices}).tanh().sum(1) * y).mean();
  }
  [[nodiscard]] Tensor scores(const Tensor& x, const Tensor& y) const {
    return (at::mv(x, vector).tanh() * y).mean();
  }
};

Tensor numbers(std::int64_t batch) { return at::randn({batch}, at::kDouble); }
Tensor indices(std::int64_t below, std::int64_t batch, std::int64_t length) {
  return at::randint(below, {batch, length}, at::kLong);
}

TEST(GeometryByFactors, EveryPairOfFormsGivesTheSameProducts) {
  ::torch::manual_seed(5);
  const Wide w;
  const auto loss = [&](Tensor (Wide::*of)(const Tensor&, const Tensor&) const) -> Loss {
    return [&w, of](const Tensor& x, const Tensor& y) { return (w.*of)(x, y); };
  };
  struct Side {
    std::string name;
    Loss loss;
    std::function<Tensor(std::int64_t)> input;
  };
  const auto of_length = [](std::vector<std::int64_t> shape) {
    return [shape](std::int64_t b) {
      std::vector<std::int64_t> whole = shape;
      whole.insert(whole.begin(), b);
      return at::randn(whole, at::kDouble);
    };
  };
  const auto tokens = [](std::int64_t below, std::int64_t length) {
    return [=](std::int64_t b) { return indices(below, b, length); };
  };
  const Side lookup{"lookup", loss(&Wide::looked_up), tokens(9, 4)};  // few, so that they meet
  const Side product{"product", loss(&Wide::multiplied), of_length({2, 6})};
  const Side tied{"tied", loss(&Wide::tied), tokens(9, 3)};
  const Side linear{"linear", loss(&Wide::linear), of_length({3, 60})};
  const Side convolution{"convolution", loss(&Wide::convolved), of_length({12, 4, 5})};
  const Side entries{"entries", loss(&Wide::entries), tokens(7, 5)};
  const Side scores{"scores", loss(&Wide::scores), of_length({50})};
  const std::vector<std::tuple<Side, Side, Tensor>> pairs = {
      {lookup, lookup, w.table},    {lookup, product, w.table},
      {product, product, w.table},  {tied, lookup, w.table},
      {tied, product, w.table},     {tied, tied, w.table},
      {linear, linear, w.weight},   {convolution, convolution, w.kernel},
      {entries, entries, w.vector}, {entries, scores, w.vector},
      {scores, scores, w.vector},
  };
  for (const auto& [a, b, parameter] : pairs)
    for (const auto& [mine, theirs] : {std::pair<std::int64_t, std::int64_t>{5, 3}, {3, 1}, {1, 1}})
      expect_cross(a.loss, {a.input(mine), numbers(mine)}, b.loss, {b.input(theirs), numbers(theirs)},
                   {parameter}, 1e-10, a.name + " against " + b.name);
  for (const Side& side : {lookup, product, tied, linear, convolution, entries, scores})
    for (const std::int64_t batch : {5, 1})
      expect_norms_and_sums(side.loss, side.input(batch), numbers(batch), 1e-10, side.name);
}

/// Larger than what an intermediate result may take, 8 MB: the last slice is a short one.
TEST(GeometryByFactors, SlicesAreAsGoodAsTheWhole) {
  ::torch::manual_seed(6);
  const auto expect = [](const Loss& loss, const std::function<Tensor(std::int64_t)>& input,
                         const Tensor& parameter, const std::string& name) {
    expect_cross(loss, {input(7), numbers(7)}, loss, {input(6), numbers(6)}, {parameter}, 1e-10, name);
    expect_norms_and_sums(loss, input(7), numbers(7), 1e-10, name);
  };
  const Tensor tied = Wide::parameter({700, 1024});
  expect(
      [&](const Tensor& x, const Tensor& y) {
        return (at::linear(at::embedding(tied, x), tied).tanh().sum({1, 2}) * y).mean();
      },
      [](std::int64_t b) { return indices(700, b, 2); }, tied, "rows of the parameter");
  const Tensor table = Wide::parameter({800000, 1});
  expect(
      [&](const Tensor& x, const Tensor& y) {
        return (at::embedding(table, x).square().sum({1, 2}) * y).mean();
      },
      [](std::int64_t b) { return indices(1000, b, 800); }, table, "pairs of positions");
  const Tensor kernel = Wide::parameter({3, 4000, 9, 9});
  expect(
      [&](const Tensor& x, const Tensor& y) {
        return (at::conv2d(x, kernel).tanh().sum({1, 2, 3}) * y).mean();
      },
      [](std::int64_t b) {
        return 0.01 * at::randn({b, 4000, 9, 10}, at::kDouble);
      },
      kernel, "windows");
}

/// One number per example is a loss too: each has a scale of its own.
TEST(GeometryByFactors, ScalesOfExamplesReachEveryResult) {
  ::torch::manual_seed(8);
  const Tensor weight = Wide::parameter({4, 5});
  const Tensor x = at::randn({6, 5}, at::kDouble);
  const auto losses = [&](const Tensor& some) { return at::linear(some, weight).square().sum(1); };
  const Loss loss_of = [&](const Tensor& some, const Tensor&) { return losses(some).sum(); };
  const auto observed = [&](std::int64_t begin, std::int64_t end, std::size_t budget) {
    GradientGeometry geometry;
    const Tensor each = losses(x.slice(0, begin, end));
    geometry.observe(each, end - begin, {.budget = budget});
    (each * at::arange(1, end - begin + 1)).sum().backward();
    return geometry;
  };
  const Gradients gradients = one_at_a_time(loss_of, x, x, {weight});
  const Tensor expected = dull_products(gradients, gradients);
  const auto mine = observed(0, 4, kNone);
  const auto theirs = observed(4, 6, kMuch);
  EXPECT_LT(error(mine.cross(theirs), expected.slice(0, 0, 4).slice(1, 4, 6)), 1e-10);
  EXPECT_LT(error(theirs.cross(mine), expected.slice(0, 4, 6).slice(1, 0, 4)), 1e-10);
  EXPECT_LT(error(mine.norms(), dull_norms(gradients).slice(0, 0, 4)), 1e-10);
  const auto sum = theirs.weighted_sum(at::tensor({2.0, -3.0}, at::kDouble))[0].reshape({-1});
  EXPECT_LT(error(sum, 2.0 * gradients[4][0] - 3.0 * gradients[5][0]), 1e-10);
}

TEST(GradientGeometry, ProductsOfALargeBatchEqualThoseOfItsRows) {
  ::torch::manual_seed(14);
  const Tensor weight = at::randn({80, 70}).set_requires_grad(true);
  const Loss loss_of = [&](const Tensor& some, const Tensor&) {
    return at::linear(some, weight).square().sum(at::IntArrayRef{1, 2}).mean();
  };
  for (const std::int64_t positions : {1, 2, 40})
    for (const std::int64_t batch : {5, 65, 131}) {
      const Tensor x = at::randn({batch, positions, 70});
      const Tensor rows = computed(loss_of, x, x, kMuch).rows().to(at::kDouble);
      const Tensor gram = computed(loss_of, x, x, kNone).gram();
      EXPECT_LT(error(gram, rows.mm(rows.t())), 1e-5) << batch << " examples of " << positions;
    }
}

TEST(GradientGeometry, ConvolutionsInSlicesEqualTheirRows) {
  ::torch::manual_seed(15);
  struct Slices {
    std::int64_t inputs, outputs, side, batch;  ///< more than one slice of 8 MB
  };
  for (const Slices& each : {Slices{8, 64, 8, 480}, Slices{64, 256, 5, 20}}) {
    const Tensor weight = at::randn({each.outputs, each.inputs, 3, 3}).set_requires_grad(true);
    const Loss loss_of = [&](const Tensor& some, const Tensor&) {
      return at::conv2d(some, weight, {}, 1, 1).square().sum(at::IntArrayRef{1, 2, 3}).mean();
    };
    const Tensor x = at::randn({each.batch, each.inputs, each.side, each.side});
    const Tensor rows = computed(loss_of, x, x, kMuch).rows().to(at::kDouble);
    const auto geometry = computed(loss_of, x, x, kNone);
    EXPECT_LT(error(geometry.gram(), rows.mm(rows.t())), 1e-5) << each.outputs << " outputs";
    const Tensor weights = at::randn({each.batch});
    const Tensor sum = geometry.weighted_sum(weights)[0].reshape({-1});
    EXPECT_LT(error(sum, rows.t().mv(weights.to(at::kDouble))), 1e-5) << each.outputs << " outputs";
  }
}

TEST(GradientGeometry, NormsOfLongVectorsKeepTheirDigits) {
  ::torch::manual_seed(12);
  const Tensor scale = at::ones({1000003}).set_requires_grad(true);
  const Tensor x = at::randn({3, 1000003});
  GradientGeometry geometry;
  geometry.compute((x * scale).sum(1).mean(), 3);
  EXPECT_LT(error(geometry.norms(), x.to(at::kDouble).norm(2, 1)), 1e-6);
}

TEST(GradientGeometry, AParameterThatOnlyOneLossDependsOnAddsNothing) {
  ::torch::manual_seed(9);
  ::torch::nn::Linear trunk(4, 5), first(5, 3), second(5, 1);
  const Tensor x = at::randn({4, 4});
  const Loss a = [&](const Tensor& some, const Tensor&) {
    return first(trunk(some).tanh()).square().sum(1).mean();
  };
  const Loss b = [&](const Tensor& some, const Tensor&) {
    return second(trunk(some).tanh()).exp().sum(1).mean();
  };
  expect_cross(a, {x, x}, b, {x.slice(0, 1), x.slice(0, 1)}, trunk->parameters(), 1e-5, "shared trunk");
}

TEST(GradientGeometry, AnExampleOfWeightZeroIsLeftOutEvenIfNotFinite) {
  const Tensor weight = at::ones({2, 3}).set_requires_grad(true);
  Tensor x = at::ones({4, 3});
  x[1][0] = std::numeric_limits<float>::infinity();
  x[2][1] = std::numeric_limits<float>::quiet_NaN();
  const Loss loss_of = [&](const Tensor& some, const Tensor&) {
    return at::linear(some, weight).sum(1).mean();
  };
  for (const std::size_t budget : {kNone, kMuch}) {
    const auto geometry = computed(loss_of, x, x, budget);
    EXPECT_TRUE(at::equal(geometry.norms().isfinite().to(at::kInt), at::tensor({1, 0, 0, 1})));
    EXPECT_TRUE(at::equal(geometry.weighted_sum(at::tensor({2, 0, 0, 1}))[0], at::full({2, 3}, 3.0F)));
    EXPECT_TRUE(at::equal(geometry.weighted_sum(at::zeros({4}))[0], at::zeros({2, 3})));
  }
}

TEST(GradientGeometry, ALayerWithoutInputsHasNoLength) {
  const Tensor weight = at::ones({2, 0}).set_requires_grad(true);
  const Tensor bias = at::ones({2}).set_requires_grad(true);
  const Loss loss_of = [&](const Tensor& some, const Tensor&) {
    return at::linear(some, weight, bias).sum(1).mean();
  };
  const Tensor x = at::ones({4, 0});
  const auto geometry = computed(loss_of, x, x, kNone);
  EXPECT_TRUE(at::equal(geometry.cross(geometry), at::full({4, 4}, 2.0F)));
  EXPECT_TRUE(at::allclose(geometry.norms(), at::full({4}, std::sqrt(2.0F))));
  for (const Tensor& sum : geometry.weighted_sum(at::ones({4})))
    EXPECT_TRUE(at::equal(sum, at::full_like(sum, 4.0F)));
}

TEST(GradientGeometry, TheGeometryOfATrainingStepOutlivesTheStep) {
  ::torch::manual_seed(10);
  ::torch::nn::Linear layer(4, 3);
  const Tensor x = at::randn({5, 4});
  const auto loss_of = [&] { return layer(x).square().sum(1).mean(); };
  GradientGeometry before;
  const Tensor loss = loss_of();
  before.observe(loss, 5);
  loss.backward();
  const Tensor gram = before.gram();
  {
    const at::NoGradGuard no_grad;
    for (const Tensor& p : layer->parameters()) p.sub_(p.grad()).mutable_grad().zero_();
  }
  GradientGeometry after;
  after.compute(loss_of(), 5);
  EXPECT_TRUE(at::equal(before.gram(), gram));
  EXPECT_TRUE(at::allclose(before.cross(after), before.rows().mm(after.rows().t()), 1e-4, 1e-5));
}

TEST(GradientGeometry, MistakesAreExplained) {
  ::torch::nn::Linear layer(3, 2), other(3, 2);
  const Tensor x = at::randn({4, 3});
  const auto loss_of = [&](::torch::nn::Linear& of) { return of(x).sum(1).mean(); };
  GradientGeometry geometry;
  geometry.compute(loss_of(layer), 4, {.parameters = ParameterSet(*layer)});
  GradientGeometry nameless;
  nameless.compute(loss_of(other), 4);
  const GradientGeometry empty;
  const Tensor weight = at::ones({2, 3});
  const Tensor bias = at::ones({2});
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {[&] { static_cast<void>(empty.norms()); }, "call loss.backward() first"},
      {[&] { static_cast<void>(geometry.cross(empty)); }, "call loss.backward() first"},
      {[&] { static_cast<void>(empty.part("*")); }, "call loss.backward() first"},
      {[&] { static_cast<void>(geometry.cross(nameless)); }, "of 2 and 2 parameters, share none"},
      {[&] { static_cast<void>(geometry.weighted_sum(at::ones({3}))); },
       "weights of shape 3; one number for each of the 4 examples is needed"},
      {[&] {
         static_cast<void>(geometry.weighted_sum(at::ones({4, 1})));
       },
       "weights of shape 4x1"},
      {[&] { static_cast<void>(geometry.weighted_sum(at::ones({}))); }, "weights of a scalar"},
      {[&] { static_cast<void>(geometry.inner({weight})); }, "1 tensors for 2 parameters"},
      {[&] {
         static_cast<void>(geometry.inner({bias, at::ones({7})}));
       },
       "tensor 1 (weight) has shape 7 and its parameter shape 2x3"},
      {[&] {
         static_cast<void>(geometry.inner({at::ones({4, 2}), at::ones({5, 2, 3})}));
       },
       "tensor 1 (weight) is 5 directions and those before are 4"},
      {[&] {
         static_cast<void>(geometry.inner({{"weight", weight}, {"bais", bias}}));
       },
       "no tensor for bias"},
      {[&] {
         static_cast<void>(nameless.inner({{"weight", weight}, {"bias", bias}}));
       },
       "a parameter of shape 2 has no name"},
      {[&] { static_cast<void>(nameless.part("weight")); }, "no parameter has a name that 'weight'"},
      {[&] { static_cast<void>(geometry.part("head.*")); }, "'head.*' matches none of 2 parameters"},
  };
  for (const auto& [call, text] : cases) {
    const std::string message = test::message_of<UserError>(call);
    EXPECT_NE(message.find(text), std::string::npos) << message << "\nhas no: " << text;
  }
}

}  // namespace
}  // namespace cdgrab::torch
