// SPDX-License-Identifier: Apache-2.0
// The smallest value that an objective has, for the tasks that are convex.
#pragma once

#include <string_view>

#include "training/settings.hpp"

namespace cdgrab::training {

/// Whether every task of this name is convex in its weights.
bool has_optimum(std::string_view task);

struct Optimum {
  double loss = 0.0;
  double gradient = 0.0;  ///< largest coordinate of the gradient there; f - f* <= |gradient|^2 / (2 l2)
};

/// By L-BFGS on all examples, in float64 whatever the settings say. has_optimum() must hold.
Optimum find_optimum(const Settings& settings);

}  // namespace cdgrab::training
