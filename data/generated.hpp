// SPDX-License-Identifier: Apache-2.0
// Data sets made from a seed, for runs without files. Pure functions of the options: equal options are
// equal data, and more examples of one seed begin with the same ones. All are made so that the order of the
// examples matters: some directions are far steeper than others, examples differ in size and kind, and no
// model of the kind meant for them fits them all. Every function throws UserError for options out of range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/images.hpp"
#include "data/labelled_rows.hpp"
#include "data/m4.hpp"
#include "data/text.hpp"

namespace cdgrab::data {

/// For logistic regression. Coordinate j has the standard deviation condition^(-j / (2 (dim - 1))), so
/// the features' covariance has about this condition number. Class c comes in proportion to 1 / (c + 2),
/// has a mean of its own and spreads of its own in every coordinate; examples lie at distances of their
/// own around it; a share of the labels is drawn anew. Hence no weights separate the classes, and the
/// gradients at the optimum are not zero.
struct RowOptions {
  std::uint64_t seed = 0;
  std::size_t examples = 4000;
  std::size_t test_examples = 1000;
  std::size_t dim = 64;
  std::size_t classes = 10;
  double condition = 1e3;
  double label_noise = 0.1;
};

LabelledRows generate_rows(const RowOptions& options, Split split);

/// 28 x 28, 10 classes. A class is a smooth random pattern; an image is its class's pattern moved by up
/// to `shift` pixels each way, with a contrast of its own, under noise.
struct ImageOptions {
  std::uint64_t seed = 0;
  std::size_t examples = 4000;
  std::size_t test_examples = 1000;
  std::size_t shift = 3;
  double noise = 0.3;
};

LabelledImages generate_images(const ImageOptions& options, Split split);

/// Series like those of M4: a level between 10 and 10^5, a trend that may turn, a season of `period` steps
/// or none, and noise that is small for some and large for others. A series is `shortest` to
/// `longest` steps long; the `horizon` steps after it are its test part.
struct SeriesOptions {
  std::uint64_t seed = 0;
  std::size_t series = 400;
  std::size_t shortest = 80;
  std::size_t longest = 400;
  std::size_t horizon = 13;
  std::size_t period = 52;
};

SeriesSplits generate_series(const SeriesOptions& options);

/// Text of several topics, whole stretches of lines each. Words are Zipf-distributed, in every topic in
/// another order of frequency; after two words a topic has a few likely next ones, and now and then any.
struct GeneratedTextOptions {
  std::uint64_t seed = 0;
  std::size_t tokens = 60000;
  std::size_t validation_tokens = 6000;
  std::size_t words = 1000;
  std::size_t topics = 8;
};

Text generate_text(const GeneratedTextOptions& options);

}  // namespace cdgrab::data
