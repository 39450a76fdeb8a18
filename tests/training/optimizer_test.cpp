// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace cdgrab::training {
namespace {

using Vector = std::vector<double>;
using tasks::Optimizer;
using tasks::Recipe;

const Vector kStart = {1.0, -0.5, 2.0};

/// Another gradient in every step.
Vector gradient_of(int step) { return {std::sin(step + 1.0), 0.25 * step - 1.0, 1.0 / (step + 2.0)}; }

double length(const Vector& v) {
  double squares = 0.0;
  for (const double x : v) squares += x * x;
  return std::sqrt(squares);
}

void expect_near(const Vector& a, const Vector& b) {
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12) << i;
}

TEST(Sgd, IsMomentumOfTheClippedGradientAndThePenalty) {
  Recipe recipe;
  recipe.momentum = 0.7;
  recipe.l2 = 0.01;
  recipe.clip = 0.8;
  WeightOptimizer<double> optimizer(recipe, 3);
  Vector mine = kStart;
  Vector dull = kStart;
  Vector velocity(3, 0.0);
  for (int step = 0; step < 5; ++step) {
    Vector g = gradient_of(step);
    optimizer.step(mine, g, 0.1);
    const double scale = std::min(1.0, 0.8 / (length(g) + 1e-6));
    for (std::size_t i = 0; i < 3; ++i) {
      velocity[i] = 0.7 * velocity[i] + scale * g[i] + 0.01 * dull[i];
      dull[i] -= 0.1 * velocity[i];
    }
    expect_near(mine, dull);
  }
}

TEST(AdamW, ShrinksWeightsApartFromTheGradient) {
  Recipe recipe;
  recipe.optimizer = Optimizer::kAdamW;
  recipe.weight_decay = 0.1;
  WeightOptimizer<double> optimizer(recipe, 3);
  Vector mine = kStart;
  Vector dull = kStart;
  Vector mean(3, 0.0);
  Vector square(3, 0.0);
  for (int step = 0; step < 5; ++step) {
    const Vector g = gradient_of(step);
    optimizer.step(mine, g, 0.05);
    for (std::size_t i = 0; i < 3; ++i) {
      dull[i] *= 1.0 - 0.05 * 0.1;
      mean[i] = 0.9 * mean[i] + 0.1 * g[i];
      square[i] = 0.999 * square[i] + 0.001 * g[i] * g[i];
      const double m = mean[i] / (1.0 - std::pow(0.9, step + 1));
      const double s = square[i] / (1.0 - std::pow(0.999, step + 1));
      dull[i] -= 0.05 * m / (std::sqrt(s) + 1e-8);
    }
    expect_near(mine, dull);
  }
}

TEST(WeightOptimizer, GoesOnFromItsState) {
  for (const Optimizer kind : {Optimizer::kSgd, Optimizer::kAdamW}) {
    Recipe recipe;
    recipe.optimizer = kind;
    WeightOptimizer<float> first(recipe, 2);
    std::vector<float> a = {1.0F, 2.0F};
    const std::vector<float> g = {0.5F, -0.25F};
    first.step(a, g, 0.1);
    State state;
    first.save(state);
    WeightOptimizer<float> second(recipe, 2);
    second.load(state);
    std::vector<float> b = a;
    first.step(a, g, 0.1);
    second.step(b, g, 0.1);
    EXPECT_EQ(a, b);
  }
}

}  // namespace
}  // namespace cdgrab::training
