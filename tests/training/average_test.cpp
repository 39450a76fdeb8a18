// SPDX-License-Identifier: Apache-2.0
#include "training/average.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace cdgrab::training {
namespace {

TEST(TailAverage, IsTheMeanOfWhatWasAdded) {
  TailAverage average;
  average.add<float>(std::vector<float>{1.0F, -2.0F});
  average.add<float>(std::vector<float>{4.0F, 0.5F});
  std::vector<double> mean(2);
  average.mean<double>(mean);
  EXPECT_EQ(mean, (std::vector<double>{2.5, -0.75}));
  EXPECT_EQ(average.count(), 2U);
}

TEST(TailAverage, BeginsWithTheLastHalfOfTheEpochs) {
  EXPECT_EQ(TailAverage::first_epoch(30), 15U);
  EXPECT_EQ(TailAverage::first_epoch(5), 2U);
  EXPECT_EQ(TailAverage::first_epoch(1), 0U);
}

TEST(TailAverage, GoesOnFromItsState) {
  TailAverage average;
  average.add<double>(std::vector<double>{0.1, 0.2});
  State state;
  average.save(state);
  TailAverage other;
  other.load(state, 2);
  for (TailAverage* one : {&average, &other}) one->add<double>(std::vector<double>{0.3, 0.7});
  std::vector<double> a(2);
  std::vector<double> b(2);
  average.mean<double>(a);
  other.mean<double>(b);
  EXPECT_EQ(a, b);
}

TEST(TailAverage, OfNothingHasAStateToo) {
  State state;
  TailAverage().save(state);
  TailAverage other;
  other.load(state, 2);
  EXPECT_EQ(other.count(), 0U);
}

}  // namespace
}  // namespace cdgrab::training
