// SPDX-License-Identifier: Apache-2.0
#include "training/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace cdgrab::training {
namespace {

using tasks::Recipe;
using tasks::Schedule;

Recipe recipe_with(Schedule schedule) {
  Recipe recipe;
  recipe.lr = 0.5;
  recipe.schedule = schedule;
  return recipe;
}

TEST(RateSchedule, ConstantIsConstant) {
  const RateSchedule rates(recipe_with(Schedule::kConstant), 10);
  for (const std::uint64_t step : {0U, 5U, 9U}) EXPECT_EQ(rates.rate(step), 0.5);
}

TEST(RateSchedule, LinearFallsToNothing) {
  const RateSchedule rates(recipe_with(Schedule::kLinear), 10);
  EXPECT_EQ(rates.rate(0), 0.5);
  EXPECT_DOUBLE_EQ(rates.rate(4), 0.3);
  EXPECT_NEAR(rates.rate(9), 0.05, 1e-15);
}

TEST(RateSchedule, CosineIsHalfWayInTheMiddle) {
  const RateSchedule rates(recipe_with(Schedule::kCosine), 10);
  EXPECT_EQ(rates.rate(0), 0.5);
  EXPECT_DOUBLE_EQ(rates.rate(5), 0.25);
  EXPECT_DOUBLE_EQ(rates.rate(8), 0.25 * (1.0 + std::cos(0.8 * std::numbers::pi)));
}

TEST(RateSchedule, StepsBeyondTheLastHaveTheLastRate) {
  const RateSchedule rates(recipe_with(Schedule::kLinear), 10);
  EXPECT_EQ(rates.rate(11), 0.0);
}

TEST(RateSchedule, PlateauDecaysWhenTheLossStopsToFall) {
  Recipe recipe = recipe_with(Schedule::kPlateau);
  recipe.patience = 1;
  recipe.decay = 0.1;
  recipe.threshold = 0.1;
  RateSchedule rates(recipe, 10);
  for (const double loss : {3.0, 2.0, 1.95}) rates.end_epoch(loss);  // the last one fell too little
  EXPECT_EQ(rates.rate(3), 0.5);
  rates.end_epoch(1.91);
  EXPECT_DOUBLE_EQ(rates.rate(4), 0.05);
  rates.end_epoch(1.5);
  rates.end_epoch(1.6);
  EXPECT_DOUBLE_EQ(rates.rate(6), 0.05);
}

TEST(RateSchedule, PlateauGoesOnFromItsState) {
  Recipe recipe = recipe_with(Schedule::kPlateau);
  recipe.patience = 0;
  RateSchedule rates(recipe, 10);
  rates.end_epoch(1.0);
  rates.end_epoch(1.0);
  State state;
  rates.save(state);
  RateSchedule other(recipe, 10);
  other.load(state);
  for (RateSchedule* one : {&rates, &other}) one->end_epoch(1.0);
  EXPECT_EQ(rates.rate(0), other.rate(0));
  EXPECT_LT(other.rate(0), 0.01);
}

TEST(RateSchedule, HasAStateBeforeTheFirstEpoch) {
  RateSchedule rates(recipe_with(Schedule::kPlateau), 10);
  State state;
  rates.save(state);
  RateSchedule other(recipe_with(Schedule::kPlateau), 10);
  other.load(decode_state(encode_state(state), "test"));
  other.end_epoch(1.0);
  EXPECT_EQ(other.rate(0), 0.5);
}

}  // namespace
}  // namespace cdgrab::training
