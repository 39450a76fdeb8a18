// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer.hpp"

#include <cmath>

namespace cdgrab::training {

template <class T>
WeightOptimizer<T>::WeightOptimizer(const tasks::Recipe& recipe, std::size_t size)
    : recipe_(recipe), first_(size), second_(recipe.optimizer == tasks::Optimizer::kAdamW ? size : 0) {}

template <class T>
void WeightOptimizer<T>::step(std::span<T> weights, std::span<const T> gradient, double rate) {
  ++steps_;
  const T factor = recipe_.clip > 0.0 ? static_cast<T>(clip_factor(gradient)) : T{1};
  if (recipe_.optimizer == tasks::Optimizer::kSgd)
    sgd(weights, gradient, static_cast<T>(rate), factor);
  else
    adamw(weights, gradient, rate, factor);
}

template <class T>
double WeightOptimizer<T>::clip_factor(std::span<const T> gradient) const {
  double squares = 0.0;
  for (const T g : gradient) squares += static_cast<double>(g) * static_cast<double>(g);
  const double length = std::sqrt(squares);
  return length > recipe_.clip ? recipe_.clip / (length + 1e-6) : 1.0;
}

template <class T>
void WeightOptimizer<T>::sgd(std::span<T> weights, std::span<const T> gradient, T rate, T factor) {
  const T momentum = static_cast<T>(recipe_.momentum);
  const T l2 = static_cast<T>(recipe_.l2);
  T* const w = weights.data();
  T* const velocity = first_.data();
  const T* const g = gradient.data();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    velocity[i] = momentum * velocity[i] + (factor * g[i] + l2 * w[i]);
    w[i] -= rate * velocity[i];
  }
}

template <class T>
void WeightOptimizer<T>::adamw(std::span<T> weights, std::span<const T> gradient, double rate, T factor) {
  constexpr double kBeta1 = 0.9;
  constexpr double kBeta2 = 0.999;
  constexpr double kEpsilon = 1e-8;
  const auto t = static_cast<double>(steps_);
  const T step = static_cast<T>(rate / (1.0 - std::pow(kBeta1, t)));
  const T spread = static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(kBeta2, t)));
  const T shrink = static_cast<T>(1.0 - rate * recipe_.weight_decay);
  const T l2 = static_cast<T>(recipe_.l2);
  const T beta1 = static_cast<T>(kBeta1);
  const T beta2 = static_cast<T>(kBeta2);
  const T epsilon = static_cast<T>(kEpsilon);
  T* const w = weights.data();
  T* const mean = first_.data();
  T* const square = second_.data();
  const T* const gradients = gradient.data();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const T g = factor * gradients[i] + l2 * w[i];
    mean[i] = beta1 * mean[i] + (T{1} - beta1) * g;
    square[i] = beta2 * square[i] + (T{1} - beta2) * g * g;
    w[i] = shrink * w[i] - step * mean[i] / (std::sqrt(square[i]) * spread + epsilon);
  }
}

template <class T>
void WeightOptimizer<T>::save(State& state) const {
  state.set("optimizer.steps", steps_);
  state.set<T>("optimizer.first", first_);
  state.set<T>("optimizer.second", second_);
}

template <class T>
void WeightOptimizer<T>::load(const State& state) {
  steps_ = state.integer("optimizer.steps");
  first_ = state.elements<T>("optimizer.first", first_.size());
  second_ = state.elements<T>("optimizer.second", second_.size());
}

template class WeightOptimizer<float>;
template class WeightOptimizer<double>;

}  // namespace cdgrab::training
