// SPDX-License-Identifier: Apache-2.0
// The least value of the objective, where it can be computed: logistic regression is convex.
#pragma once

#include <cstddef>
#include <optional>

#include "tasks/catalogue.hpp"

namespace cdgrab::tasks {

struct Optimum {
  double loss = 0.0;      ///< the penalty included
  double gradient = 0.0;  ///< length of the objective's gradient there
};

/// By L-BFGS over all training examples, in float64; seconds for tens of thousands of examples, and
/// remembered. Nothing for a task that is not convex, and where the gradient does not vanish. Without a
/// penalty the least value may lie at infinity: then this is what is reached on the way there.
std::optional<Optimum> optimum_of(const Task& task, double l2);

}  // namespace cdgrab::tasks
