// SPDX-License-Identifier: Apache-2.0
// The vectors that observe() reads off the graph against gradients of one example at a time.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "cdgrab/torch/gradient_geometry.hpp"
#include "models/models.hpp"

namespace cdgrab::torch {
namespace {

using at::Tensor;
using models::Case;

/// (B, d): the gradient of each example's own loss, for the parameters in this order; unused ones are zero.
Tensor one_at_a_time(const Case& c, const Tensor& x, const Tensor& y, const std::vector<Tensor>& parameters) {
  std::vector<Tensor> rows;
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    const Tensor loss = c.loss(x.slice(0, i, i + 1), y.slice(0, i, i + 1));
    const auto gradients = ::torch::autograd::grad({loss}, parameters, {}, false, false, true);
    std::vector<Tensor> row;
    for (std::size_t p = 0; p < parameters.size(); ++p)
      row.push_back(gradients[p].defined() ? gradients[p].reshape({-1})
                                           : at::zeros({parameters[p].numel()}, x.options()));
    rows.push_back(at::cat(row));
  }
  return at::stack(rows);
}

double error(const Tensor& a, const Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

void to_double(const Case& c) {
  for (const Tensor& p : c.parameters) p.set_data(p.data().to(at::kDouble));
}

class Observe : public testing::TestWithParam<std::tuple<std::size_t, std::int64_t, bool>> {
 protected:
  struct Setting {
    Case model;
    Tensor x;
    Tensor y;
    std::int64_t batch;
    double tolerance;
  };
  static Setting make_case() {
    const auto [index, batch, wide] = GetParam();
    ::torch::manual_seed(7);
    Case model = models::all()[index];
    if (wide) to_double(model);
    auto [x, y] = model.data(batch);
    if (wide && x.is_floating_point()) x = x.to(at::kDouble);
    return {std::move(model), x, y, batch, wide ? 1e-10 : 1e-5};
  }
};

TEST_P(Observe, GramAndProductsEqualThoseOfOneExampleAtATime) {
  const auto [c, x, y, batch, tolerance] = make_case();

  const Tensor plain_loss = c.loss(x, y);
  plain_loss.backward();
  std::vector<Tensor> plain;
  for (const Tensor& p : c.parameters) {
    plain.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
    p.mutable_grad() = Tensor();
  }

  GradientGeometry geometry;
  const Tensor loss = c.loss(x, y);
  geometry.observe(loss, batch);
  (loss * 0.25).backward();  // loss/k changes nothing
  for (const Tensor& p : c.parameters) p.mutable_grad() = Tensor();
  const Tensor again = c.loss(x, y);
  geometry.observe(again, batch);
  again.backward();
  for (std::size_t p = 0; p < plain.size(); ++p) {
    if (!plain[p].defined()) continue;
    EXPECT_TRUE(at::equal(c.parameters[p].grad(), plain[p]))
        << "the user's gradients must not change by a bit";
  }

  const auto parameters = geometry.parameters();
  const Tensor rows = one_at_a_time(c, x, y, parameters);
  EXPECT_LT(error(geometry.rows(), rows), tolerance) << c.name;
  EXPECT_LT(error(geometry.gram(), rows.mm(rows.t())), tolerance) << c.name;
  std::vector<Tensor> direction;
  for (const Tensor& p : parameters) direction.push_back(at::randn_like(p));
  std::vector<Tensor> flat;
  for (const Tensor& d : direction) flat.push_back(d.reshape({-1}));
  EXPECT_LT(error(geometry.inner(direction), rows.mv(at::cat(flat))), tolerance) << c.name;
}

INSTANTIATE_TEST_SUITE_P(Models, Observe,
                         testing::Combine(testing::Range(std::size_t{0}, models::all().size()),
                                          testing::Values(1, 2, 3, 6, 17), testing::Bool()),
                         [](const auto& instance) {
                           return models::all()[std::get<0>(instance.param)].name + "B" +
                                  std::to_string(std::get<1>(instance.param)) +
                                  (std::get<2>(instance.param) ? "Double" : "Float");
                         });

/// The oracle of docs/math.md, section 6, for models in which examples meet: each row of the batch has its
/// own copy of the parameters. A layer is written twice, once for parameters shared by all rows and once for
/// (B, ..) copies.
struct Layers {
  bool copies;

  [[nodiscard]] Tensor linear(const Tensor& x, const Tensor& w) const {
    return copies ? at::einsum("bi,boi->bo", {x, w}) : at::linear(x, w);
  }
  [[nodiscard]] Tensor convolution(const Tensor& x, const Tensor& w) const {
    if (!copies) return at::conv2d(x, w, {}, 1, 1);
    const auto b = x.size(0);
    const Tensor grouped =
        at::conv2d(x.reshape({1, -1, x.size(2), x.size(3)}), w.flatten(0, 1), {}, 1, 1, 1, b);
    return grouped.view({b, -1, grouped.size(2), grouped.size(3)});
  }
  [[nodiscard]] Tensor batch_norm(const Tensor& x, const Tensor& w, const Tensor& shift) const {
    if (!copies) return at::batch_norm(x, w, shift, {}, {}, true, 0.1, 1e-5, false);
    std::vector<std::int64_t> over = {0};
    std::vector<std::int64_t> shape = {x.size(0), x.size(1)};
    for (std::int64_t d = 2; d < x.dim(); ++d) {
      over.push_back(d);
      shape.push_back(1);
    }
    const Tensor normal =
        (x - x.mean(over, true)) / (x.var(over, /*unbiased=*/false, /*keepdim=*/true) + 1e-5).sqrt();
    return normal * w.view(shape) + shift.view(shape);
  }
  /// A bare parameter, against one row per example.
  [[nodiscard]] Tensor add(const Tensor& x, const Tensor& p) const { return x + p; }
};

struct Coupled {
  std::string name;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::int64_t> input;
  std::function<Tensor(const Layers&, const std::vector<Tensor>&, const Tensor&)> forward;
};

std::vector<Coupled> coupled_models() {
  return {
      {"BatchNormMlp",
       {{4, 5}, {4}, {4}, {3, 4}},
       {5},
       [](const Layers& f, const std::vector<Tensor>& p, const Tensor& x) {
         return f.linear(at::relu(f.batch_norm(f.linear(x, p[0]), p[1], p[2])), p[3]);
       }},
      // A residual block with batch norm, in-place ReLU and dropout, a layer used twice, a bare parameter.
      {"ResidualBlock",
       {{4, 4, 3, 3}, {4}, {4}, {4, 4, 3, 3}, {4}, {4}, {6, 6}, {4, 6}, {6}},
       {4, 6, 5},
       [](const Layers& f, const std::vector<Tensor>& p, const Tensor& x) {
         Tensor h = f.batch_norm(f.convolution(x, p[0]), p[1], p[2]).relu_();
         h = (f.batch_norm(f.convolution(h, p[3]), p[4], p[5]) + x).relu_();
         h = at::dropout(h, 0.3, true).mean({1, 3});
         h = f.linear(f.linear(f.add(h, p[8]), p[6]).tanh_(), p[6]);
         return f.linear(h, p[7]);
       }},
  };
}

class Coupling : public testing::TestWithParam<std::tuple<std::size_t, std::int64_t>> {};

TEST_P(Coupling, AnExamplesVectorIsItsShareOfTheBatchsGradient) {
  const auto [index, b] = GetParam();
  const Coupled model = coupled_models()[index];
  ::torch::manual_seed(11);
  const auto wide = at::TensorOptions(at::kDouble);
  std::vector<std::int64_t> input = model.input;
  input.insert(input.begin(), b);
  const Tensor x = at::randn(input, wide);
  std::vector<Tensor> parameters;
  std::vector<Tensor> copies;
  for (const auto& shape : model.shapes) {
    parameters.push_back((0.5 * at::randn(shape, wide)).set_requires_grad(true));
    copies.push_back(parameters.back().detach().unsqueeze(0).repeat_interleave(b, 0).set_requires_grad(true));
  }
  const Tensor y = at::randint(model.shapes[model.shapes.size() == 4 ? 3 : 7][0], {b}, at::kLong);
  const auto loss_of = [&](const Layers& layers, const std::vector<Tensor>& p) {
    ::torch::manual_seed(5);  // the same dropout
    return models::F::cross_entropy(model.forward(layers, p, x), y);
  };
  loss_of({false}, parameters).backward();
  std::vector<Tensor> plain;
  for (const Tensor& p : parameters) plain.push_back(std::exchange(p.mutable_grad(), Tensor()));

  GradientGeometry geometry;
  const Tensor loss = loss_of({false}, parameters);
  geometry.observe(loss, b);
  loss.backward();
  loss_of({true}, copies).backward();
  std::vector<Tensor> rows;
  for (const Tensor& p : geometry.parameters())
    for (std::size_t q = 0; q < parameters.size(); ++q)
      if (parameters[q].is_same(p))
        rows.push_back(static_cast<double>(b) * copies[q].grad().reshape({b, -1}));
  EXPECT_EQ(rows.size(), parameters.size()) << "refused or overlooked";
  const Tensor expected = at::cat(rows, 1);
  EXPECT_LT(error(geometry.rows(), expected), 1e-10);
  EXPECT_LT(error(geometry.gram(), expected.mm(expected.t())), 1e-10);
  for (std::size_t q = 0; q < parameters.size(); ++q) EXPECT_TRUE(at::equal(parameters[q].grad(), plain[q]));
}

INSTANTIATE_TEST_SUITE_P(Models, Coupling,
                         testing::Combine(testing::Range(std::size_t{0}, coupled_models().size()),
                                          testing::Values(2, 3, 17)),
                         [](const auto& instance) {
                           return coupled_models()[std::get<0>(instance.param)].name + "B" +
                                  std::to_string(std::get<1>(instance.param));
                         });

/// Whatever is formed or not, the numbers are the same: no budget at all, and a generous one.
TEST_P(Observe, ABudgetChangesWhatIsHeldAndNotTheNumbers) {
  const auto [c, x, y, batch, tolerance] = make_case();
  const auto observed = [&, &c = c, &x = x, &y = y, batch = batch](std::size_t budget) {
    GradientGeometry geometry;
    const Tensor loss = c.loss(x, y);
    geometry.observe(loss, batch, {.budget = budget});
    loss.backward();
    return geometry;
  };
  const GradientGeometry none = observed(0);
  const GradientGeometry much = observed(std::size_t{1} << 30);
  EXPECT_LT(error(none.gram(), much.gram()), tolerance);
  EXPECT_LT(error(none.rows(), much.rows()), tolerance);
  std::vector<Tensor> direction;
  for (const Tensor& p : much.parameters()) direction.push_back(at::randn_like(p));
  EXPECT_LT(error(none.inner(direction), much.inner(direction)), tolerance);
}

/// A weight on its way to a product, in every disguise.
TEST(Observe, AParameterBehindViewsAndTransposesIsFollowed) {
  ::torch::manual_seed(3);
  using Forward = std::function<Tensor(const Tensor&, const Tensor&)>;
  const std::vector<std::pair<std::string, Forward>> forms = {
      {"t", [](const Tensor& x, const Tensor& w) { return x.mm(w.t()); }},
      {"permute",
       [](const Tensor& x, const Tensor& w) {
         return x.mm(w.permute({1, 0}));
       }},
      {"negative transpose", [](const Tensor& x, const Tensor& w) { return x.mm(w.transpose(-1, -2)); }},
      {"view",
       [](const Tensor& x, const Tensor& w) {
         return x.mm(w.view({4, 6})).tanh();
       }},
      {"view of a transpose",
       [](const Tensor& x, const Tensor& w) {
         return x.mm(w.t().reshape({6, 4}).t().reshape({4, 6}));
       }},
      {"slice", [](const Tensor& x, const Tensor& w) { return x.mm(w.slice(0, 1, 5).t()); }},
      {"select",
       [](const Tensor& x, const Tensor& w) {
         return x.mm(w.view({2, 3, 4}).select(0, 1).t());
       }},
      {"einsum",
       [](const Tensor& x, const Tensor& w) {
         return at::einsum("bi,oi->bo", {x, w});
       }},
      {"einsum over positions",
       [](const Tensor& x, const Tensor& w) {
         return at::einsum("bti,oi->bto", {x.unsqueeze(1).expand({-1, 3, -1}), w}).sum(1);
       }},
      {"cast", [](const Tensor& x,
                  const Tensor& w) { return x.to(at::kFloat).mm(w.to(at::kFloat).t()).to(at::kDouble); }},
      {"batched product",
       [](const Tensor& x, const Tensor& w) {
         return x.unsqueeze(1).bmm(w.t().unsqueeze(0).expand({x.size(0), 4, 6})).squeeze(1);
       }},
      {"batched product, turned after expanding",
       [](const Tensor& x, const Tensor& w) {
         return x.unsqueeze(1).bmm(w.unsqueeze(0).expand({x.size(0), 6, 4}).transpose(1, 2)).squeeze(1);
       }},
  };
  const Tensor x = at::randn({5, 4}, at::kDouble);
  for (const auto& [name, forward] : forms) {
    const Tensor w = at::randn({6, 4}, at::kDouble).set_requires_grad(true);
    const auto loss_of = [&, &forward = forward](const Tensor& some) {
      return forward(some, w).pow(2).sum(1).mean();
    };
    const Tensor loss = loss_of(x);
    GradientGeometry geometry;
    geometry.observe(loss, 5);
    loss.backward();
    std::vector<Tensor> rows;
    for (std::int64_t i = 0; i < 5; ++i)
      rows.push_back(::torch::autograd::grad({loss_of(x.slice(0, i, i + 1))}, {w})[0].reshape({-1}));
    const double tolerance = name == "cast" ? 1e-5 : 1e-10;
    EXPECT_LT(error(geometry.rows(), at::stack(rows)), tolerance) << name;
    EXPECT_LT(error(geometry.gram(), at::stack(rows).mm(at::stack(rows).t())), tolerance) << name;
  }
}

/// Sums are of integers: no rounding tells them from those of one example at a time.
TEST(ObserveRows, ThatAreNamedBelongToTheirExamples) {
  ::torch::manual_seed(5);
  const Tensor weight = at::randint(-3, 4, {2, 3}).to(at::kFloat).requires_grad_();
  const Tensor x = at::randint(-3, 4, {6, 3}).to(at::kFloat);
  const Tensor owners = at::tensor({2, 0, 2, 3, 0, 2}, at::kLong);
  GradientGeometry geometry;
  geometry.compute((at::linear(x, weight) * at::arange(1, 3)).sum(), 4,
                   {.sum = true, .example_of_row = owners});
  Tensor expected = at::zeros({4, 2, 3});
  for (std::int64_t row = 0; row < 6; ++row)
    expected[owners[row].item<std::int64_t>()] += at::outer(at::arange(1, 3).to(at::kFloat), x[row]);
  EXPECT_TRUE(at::equal(geometry.rows(), expected.view({4, 6})));
}

}  // namespace
}  // namespace cdgrab::torch
