// SPDX-License-Identifier: Apache-2.0
// The vectors that observe() reads off the graph against gradients of one example at a time.
#include <gtest/gtest.h>

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

class Observe : public testing::TestWithParam<std::tuple<std::size_t, std::int64_t, bool>> {};

TEST_P(Observe, GramAndProductsEqualThoseOfOneExampleAtATime) {
  const auto [index, batch, wide] = GetParam();
  ::torch::manual_seed(7);
  const Case c = models::all()[index];
  if (wide) to_double(c);
  auto [x, y] = c.data(batch);
  if (wide && x.is_floating_point()) x = x.to(at::kDouble);
  const double tolerance = wide ? 1e-10 : 1e-5;

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

/// docs/math.md, section 6: every row of the batch has its own copy of the parameters.
TEST(Observe, WithBatchNormAnExamplesVectorIsItsShareOfTheBatchsGradient) {
  ::torch::manual_seed(11);
  const std::int64_t b = 7;
  const auto wide = at::TensorOptions(at::kDouble);
  const Tensor x = at::randn({b, 5}, wide);
  const Tensor y = at::randint(3, {b}, at::kLong);
  const std::vector<Tensor> parameters = {at::randn({4, 5}, wide), at::rand({4}, wide) + 0.5,
                                          at::randn({4}, wide), at::randn({3, 4}, wide)};
  for (const Tensor& p : parameters) p.set_requires_grad(true);
  const Tensor hidden = at::batch_norm(at::linear(x, parameters[0]), parameters[1], parameters[2], {}, {},
                                       true, 0.1, 1e-5, false);
  const Tensor loss = models::F::cross_entropy(at::linear(at::relu(hidden), parameters[3]), y);
  GradientGeometry geometry;
  geometry.observe(loss, b);
  loss.backward();

  std::vector<Tensor> copies;
  for (const Tensor& p : parameters) {
    std::vector<std::int64_t> shape = {b};
    shape.insert(shape.end(), p.sizes().begin(), p.sizes().end());
    copies.push_back(p.detach().expand(shape).clone().set_requires_grad(true));
  }
  const Tensor z = at::einsum("bi,boi->bo", {x, copies[0]});
  const Tensor normal = (z - z.mean(0)) / (z.var(0, false) + 1e-5).sqrt();
  const Tensor out = at::einsum("bi,boi->bo", {at::relu(normal * copies[1] + copies[2]), copies[3]});
  models::F::cross_entropy(out, y).backward();
  std::vector<Tensor> rows;
  for (const Tensor& p : geometry.parameters())
    for (std::size_t q = 0; q < parameters.size(); ++q)
      if (parameters[q].is_same(p))
        rows.push_back(static_cast<double>(b) * copies[q].grad().reshape({b, -1}));
  EXPECT_LT(error(geometry.rows(), at::cat(rows, 1)), 1e-10);
}

}  // namespace
}  // namespace cdgrab::torch
