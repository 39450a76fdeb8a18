// SPDX-License-Identifier: Apache-2.0
// What `cdgrab compare` is going to train.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compare/result.hpp"
#include "compare/store.hpp"
#include "compare_options.hpp"
#include "training/settings.hpp"

namespace cdgrab::cli {

struct Plan {
  training::Settings shared;        ///< but for what the lists below vary
  std::vector<std::string> orders;  ///< kBaselineOrder first, each once
  std::vector<tasks::Schedule> schedules;
  std::vector<training::Average> averages;
  std::vector<double> rates;  ///< ascending
  std::vector<std::uint64_t> seeds;
};

/// Throws UserError for a list that cannot be read.
Plan make_plan(const CompareOptions& options);

/// One training. What it ends with is judged once for each average.
struct Training {
  std::string order;
  tasks::Schedule schedule = tasks::Schedule::kConstant;
  double rate = 0.0;
  std::uint64_t seed = 0;
};

/// Seed by seed, so that a comparison that is broken off has whole ones.
std::vector<Training> trainings_of(const Plan& plan);
training::Settings settings_of(const Plan& plan, const Training& training);
Recipe recipe_of(const Training& training, training::Average average);

/// By their flags, the values that all runs share, as text.
Settings shared_settings(const Plan& plan);

/// The parts of a result that are known before anything is trained.
CompareResult result_of(const Plan& plan);

}  // namespace cdgrab::cli
