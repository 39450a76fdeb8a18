// SPDX-License-Identifier: Apache-2.0
#include "data/generated.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cdgrab/error.hpp"
#include "unit/temp_folder.hpp"

namespace cdgrab::data {
namespace {

using test::message_of;

bool all_finite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

double variance(const LabelledRows& rows, std::size_t column) {
  double sum = 0;
  double squares = 0;
  const double count = static_cast<double>(rows.label.size());
  for (std::size_t i = 0; i < rows.label.size(); ++i) {
    const double value = rows.values[i * rows.dim + column];
    sum += value;
    squares += value * value;
  }
  return squares / count - sum / count * (sum / count);
}

TEST(GeneratedRows, AreAFunctionOfTheSeed) {
  const LabelledRows rows = generate_rows({}, Split::kTrain);
  EXPECT_EQ(generate_rows({}, Split::kTrain).values, rows.values);
  EXPECT_EQ(generate_rows({}, Split::kTrain).label, rows.label);
  EXPECT_NE(generate_rows({.seed = 1}, Split::kTrain).values, rows.values);
  const LabelledRows fewer = generate_rows({.examples = 10}, Split::kTrain);
  EXPECT_TRUE(std::ranges::equal(fewer.values, std::span(rows.values).first(10 * rows.dim)));
}

TEST(GeneratedRows, HaveTheirShapesAndTwoDifferentSplits) {
  const RowOptions options{.examples = 50, .test_examples = 20, .dim = 7, .classes = 3};
  const LabelledRows train = generate_rows(options, Split::kTrain);
  const LabelledRows test = generate_rows(options, Split::kTest);
  EXPECT_EQ(train.dim, 7U);
  EXPECT_EQ(train.values.size(), 50U * 7);
  EXPECT_EQ(train.label.size(), 50U);
  EXPECT_EQ(test.label.size(), 20U);
  EXPECT_EQ(train.label_names, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_TRUE(all_finite(train.values));
  EXPECT_FALSE(std::ranges::equal(test.values, std::span(train.values).first(test.values.size())));
  EXPECT_EQ(generate_rows({.dim = 1}, Split::kTrain).values.size(), 4000U);
}

TEST(GeneratedRows, AreIllConditionedAndOfUnequalClasses) {
  const LabelledRows rows = generate_rows({}, Split::kTrain);
  const double ratio = variance(rows, 0) / variance(rows, rows.dim - 1);
  EXPECT_GT(ratio, 300);
  EXPECT_LT(ratio, 3000);
  EXPECT_GT(std::ranges::count(rows.label, 0), 2 * std::ranges::count(rows.label, 9));
  EXPECT_GT(std::ranges::count(rows.label, 9), 50);
}

TEST(GeneratedImages, AreAFunctionOfTheSeed) {
  const ImageOptions options{.examples = 40, .test_examples = 30};
  const LabelledImages train = generate_images(options, Split::kTrain);
  EXPECT_EQ(train.images.shape, (std::vector<std::uint64_t>{40, 28, 28}));
  EXPECT_EQ(train.images.values.size(), 40U * 28 * 28);
  EXPECT_EQ(train.labels.values.size(), 40U);
  EXPECT_EQ(generate_images(options, Split::kTrain).images.values, train.images.values);
  EXPECT_EQ(generate_images(options, Split::kTest).labels.shape, (std::vector<std::uint64_t>{30}));
  EXPECT_NE(generate_images({.seed = 1, .examples = 40}, Split::kTrain).images.values, train.images.values);
  EXPECT_NE(generate_images({.examples = 40, .test_examples = 40}, Split::kTest).images.values,
            train.images.values);
}

// Nearest class mean on images that do not move: far above the 0.1 of guessing, below what leaves no errors
// to learn.
TEST(GeneratedImages, ShowTheirClass) {
  const ImageOptions options{.examples = 500, .test_examples = 200, .shift = 0};
  const LabelledImages train = generate_images(options, Split::kTrain);
  const LabelledImages test = generate_images(options, Split::kTest);
  constexpr std::size_t kPixels = 28 * 28;
  std::vector<double> means(10 * kPixels);
  for (std::size_t i = 0; i < 500; ++i) {
    const std::size_t c = train.labels.values[i];
    const auto count = static_cast<double>(std::ranges::count(train.labels.values, train.labels.values[i]));
    for (std::size_t p = 0; p < kPixels; ++p)
      means[c * kPixels + p] += train.images.values[i * kPixels + p] / count;
  }
  int right = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    std::vector<double> distances(10);
    for (std::size_t at = 0; at < 10 * kPixels; ++at) {
      distances[at / kPixels] += std::pow(means[at] - test.images.values[i * kPixels + at % kPixels], 2);
    }
    right += std::ranges::min_element(distances) - distances.begin() == test.labels.values[i] ? 1 : 0;
  }
  EXPECT_GT(right, 150);
}

TEST(GeneratedSeries, AreAFunctionOfTheSeed) {
  const SeriesSplits splits = generate_series({});
  ASSERT_EQ(splits.train.size(), 400U);
  ASSERT_EQ(splits.test.size(), 400U);
  float smallest = splits.train[0].values[0];
  float largest = smallest;
  for (std::size_t k = 0; k < 400; ++k) {
    const std::vector<float>& values = splits.train[k].values;
    EXPECT_TRUE(values.size() >= 80 && values.size() <= 400);
    EXPECT_TRUE(all_finite(values) && all_finite(splits.test[k].values));
    EXPECT_EQ(splits.test[k].values.size(), 13U);
    EXPECT_EQ(splits.test[k].name, splits.train[k].name);
    smallest = std::min(smallest, values[0]);
    largest = std::max(largest, values[0]);
  }
  EXPECT_GT(largest / smallest, 1000.0F);
  EXPECT_EQ(generate_series({}).train[7].values, splits.train[7].values);
  EXPECT_NE(generate_series({.seed = 1}).train[7].values, splits.train[7].values);
}

TEST(GeneratedText, IsAFunctionOfTheSeed) {
  const Text text = generate_text({});
  EXPECT_EQ(text.words.size(), 1000U);
  EXPECT_EQ(text.words[kEndOfLine], "<eos>");
  EXPECT_EQ(std::set<std::string>(text.words.begin(), text.words.end()).size(), 1000U);
  EXPECT_EQ(text.train.size(), 60000U);
  EXPECT_EQ(text.validation.size(), 6000U);
  EXPECT_TRUE(std::ranges::all_of(text.train, [](std::int32_t t) { return t >= 1 && t < 1000; }));
  EXPECT_FALSE(std::ranges::equal(text.validation, std::span(text.train).first(6000)));
  EXPECT_EQ(generate_text({}).train, text.train);
  EXPECT_NE(generate_text({.seed = 1}).train, text.train);
}

TEST(GeneratedText, NeighboursComeTogetherAgainMoreOftenThanWordsFarApart) {
  const Text text = generate_text({});
  const auto repeated_pairs = [&](std::size_t distance) {
    std::set<std::pair<std::int32_t, std::int32_t>> seen;
    for (std::size_t k = distance; k < text.train.size(); ++k)
      seen.emplace(text.train[k - distance], text.train[k]);
    return 1.0 - static_cast<double>(seen.size()) / static_cast<double>(text.train.size() - distance);
  };
  EXPECT_GT(repeated_pairs(1), repeated_pairs(1000) + 0.1);
}

TEST(Generated, OptionsOutOfRangeAreRefused) {
  const auto message = [](auto call) { return message_of<UserError>([&] { static_cast<void>(call()); }); };
  const auto rows = message([] { return generate_rows({.classes = 1}, Split::kTrain); });
  EXPECT_NE(rows.find("[generate_rows] classes is 1; allowed are 2 to 1000"), std::string::npos) << rows;
  const auto noise = message([] { return generate_rows({.label_noise = std::nan("")}, Split::kTrain); });
  EXPECT_NE(noise.find("label_noise is nan; allowed are 0 to 1"), std::string::npos) << noise;
  const auto shift = message([] { return generate_images({.shift = 29}, Split::kTrain); });
  EXPECT_NE(shift.find("shift is 29; allowed are 0 to 28"), std::string::npos) << shift;
  const auto series = message([] { return generate_series({.shortest = 5, .longest = 4}); });
  EXPECT_NE(series.find("shortest is 5; allowed are 1 to 4"), std::string::npos) << series;
  const auto text = message([] { return generate_text({.words = 2}); });
  EXPECT_NE(text.find("words is 2; allowed are 3 to 1000000"), std::string::npos) << text;
}

}  // namespace
}  // namespace cdgrab::data
