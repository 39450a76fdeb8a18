// SPDX-License-Identifier: Apache-2.0
// SGD with momentum and AdamW on one vector of weights, as torch defines them, each in one pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cdgrab/state.hpp"
#include "tasks/catalogue.hpp"

namespace cdgrab::training {

/// T is float or double.
template <class T>
class WeightOptimizer {
 public:
  WeightOptimizer(const tasks::Recipe& recipe, std::size_t size);

  /// Moves the weights by the gradient of the loss, which is clipped, and of the penalty.
  void step(std::span<T> weights, std::span<const T> gradient, double rate);

  void save(State& state) const;
  void load(const State& state);

 private:
  [[nodiscard]] double clip_factor(std::span<const T> gradient) const;
  void sgd(std::span<T> weights, std::span<const T> gradient, T rate, T factor);
  void adamw(std::span<T> weights, std::span<const T> gradient, double rate, T factor);

  tasks::Recipe recipe_;
  std::vector<T> first_;   ///< momentum
  std::vector<T> second_;  ///< adamw: mean of the squares
  std::int64_t steps_ = 0;
};

}  // namespace cdgrab::training
