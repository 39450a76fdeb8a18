// SPDX-License-Identifier: Apache-2.0
#include "data/generated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/permutation.hpp"
#include "cdgrab/random.hpp"

namespace cdgrab::data {
namespace {

// What a draw is for: the level of its stream. The epoch is the example, class or topic, the position the
// draw inside it. `cdgrab herd` draws with the levels 0 and 1.
enum class Part : std::uint32_t {
  kRowMean = 16,
  kRowSpread,
  kRowClass,
  kRowNoise,
  kPattern,
  kImage,
  kPixel,
  kSeriesShape,
  kSeriesNoise,
  kFrequency,
  kNextWord,
  kToken,
};

Stream stream(std::uint64_t seed, Part part, std::uint64_t of) {
  return {seed, Purpose::kData, of, static_cast<std::uint32_t>(part)};
}

constexpr std::size_t kMostExamples = std::size_t{1} << 31U;

// Test examples are the ones after all training examples there could be.
std::uint64_t number_of(std::size_t example, Split split) {
  return split == Split::kTrain ? example : kMostExamples + example;
}

template <class T>
void require_range(std::string_view where, std::string_view name, T value, T least, T most) {
  if (value >= least && value <= most) return;
  throw UserError(
      where, fmt::format("{} is {}; allowed are {} to {}: choose one of these", name, value, least, most));
}

void require_counts(std::string_view where, std::size_t examples, std::size_t test_examples) {
  require_range<std::size_t>(where, "examples", examples, 1, kMostExamples);
  require_range<std::size_t>(where, "test_examples", test_examples, 0, kMostExamples);
}

// Where `draw`, uniform on [0, 1), falls among the ascending `cumulative`, of which the last is the total.
std::size_t pick(std::span<const double> cumulative, double draw) {
  const auto found = std::ranges::upper_bound(cumulative, draw * cumulative.back());
  return std::min(static_cast<std::size_t>(found - cumulative.begin()), cumulative.size() - 1);
}

std::vector<double> cumulative_of(std::vector<double> weights) {
  std::partial_sum(weights.begin(), weights.end(), weights.begin());
  return weights;
}

class Rows {
 public:
  explicit Rows(const RowOptions& options) : options_(options) {
    constexpr double kDistance = 0.35;  // of the means, in standard deviations of a coordinate
    std::vector<double> frequencies;
    for (std::size_t c = 0; c < options.classes; ++c) {
      frequencies.push_back(1.0 / static_cast<double>(c + 2));
      for (std::size_t j = 0; j < options.dim; ++j) {
        const double size = size_of(j);
        means_.push_back(size * kDistance * normal(stream(options.seed, Part::kRowMean, c), j));
        spreads_.push_back(size * std::exp(0.4 * normal(stream(options.seed, Part::kRowSpread, c), j)));
      }
    }
    frequencies_ = cumulative_of(std::move(frequencies));
  }

  void add(std::uint64_t example, LabelledRows& rows) const {
    const Stream choice = stream(options_.seed, Part::kRowClass, example);
    const std::size_t c = pick(frequencies_, uniform(choice, 0));
    const bool noisy = uniform(choice, 1) < options_.label_noise;
    const std::uint64_t label = noisy ? uniform_below(choice, 2, options_.classes) : c;
    const double distance = std::exp(0.3 * normal(choice, 3));
    const Stream noise = stream(options_.seed, Part::kRowNoise, example);
    for (std::size_t j = 0; j < options_.dim; ++j) {
      const std::size_t at = c * options_.dim + j;
      rows.values.push_back(static_cast<float>(means_[at] + spreads_[at] * distance * normal(noise, j)));
    }
    rows.label.push_back(static_cast<std::int32_t>(label));
  }

 private:
  [[nodiscard]] double size_of(std::size_t j) const {
    if (options_.dim == 1) return 1.0;
    return std::pow(options_.condition,
                    -static_cast<double>(j) / (2.0 * static_cast<double>(options_.dim - 1)));
  }

  RowOptions options_;
  std::vector<double> frequencies_;
  std::vector<double> means_;    // classes x dim
  std::vector<double> spreads_;  // classes x dim
};

constexpr std::size_t kSide = 28;
constexpr std::size_t kImageClasses = 10;

// A class's pattern with a margin of `shift` around it: a few waves across the image, between -1 and 1 for
// the most part.
std::vector<double> make_pattern(const ImageOptions& options, std::size_t c) {
  constexpr std::size_t kWaves = 6;
  const std::size_t side = kSide + 2 * options.shift;
  const Stream draws = stream(options.seed, Part::kPattern, c);
  std::vector<double> pattern(side * side);
  for (std::size_t wave = 0; wave < kWaves; ++wave) {
    const double across = 5.0 * uniform(draws, 3 * wave) - 2.5;
    const double down = 5.0 * uniform(draws, 3 * wave + 1) - 2.5;
    const double phase = uniform(draws, 3 * wave + 2);
    for (std::size_t at = 0; at < pattern.size(); ++at) {
      const double x = static_cast<double>(at % side) / kSide;
      const double y = static_cast<double>(at / side) / kSide;
      pattern[at] += std::cos(2.0 * std::numbers::pi * (across * x + down * y + phase)) / std::sqrt(kWaves);
    }
  }
  return pattern;
}

void add_image(const ImageOptions& options, std::span<const std::vector<double>> patterns,
               std::uint64_t example, LabelledImages& all) {
  const Stream choice = stream(options.seed, Part::kImage, example);
  const Stream noise = stream(options.seed, Part::kPixel, example);
  const std::uint64_t label = uniform_below(choice, 0, kImageClasses);
  const std::size_t left = uniform_below(choice, 1, 2 * options.shift + 1);
  const std::size_t top = uniform_below(choice, 2, 2 * options.shift + 1);
  const double contrast = 0.5 * std::exp(0.4 * normal(choice, 3));
  const std::size_t side = kSide + 2 * options.shift;
  for (std::size_t at = 0; at < kSide * kSide; ++at) {
    const double clean = patterns[label][(top + at / kSide) * side + left + at % kSide];
    const double value = 127.5 * (1.0 + contrast * clean + options.noise * normal(noise, at));
    all.images.values.push_back(static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0)));
  }
  all.labels.values.push_back(static_cast<std::uint8_t>(label));
}

// The logarithm of a series is a trend that turns once, a season, and noise that remembers.
struct SeriesShape {
  std::size_t length;
  double level;
  double slope, later_slope, turn;  // of the whole length
  double season, overtone, phase;
  double noise;

  SeriesShape(const SeriesOptions& options, std::size_t number) {
    const Stream draws = stream(options.seed, Part::kSeriesShape, number);
    length = options.shortest + uniform_below(draws, 0, options.longest - options.shortest + 1);
    level = (1.0 + 4.0 * uniform(draws, 1)) * std::numbers::ln10;
    slope = 0.5 * normal(draws, 2);
    later_slope = 0.5 * normal(draws, 3);
    turn = uniform(draws, 4);
    const bool seasonal = uniform(draws, 5) < 0.5;
    season = seasonal ? 0.3 * uniform(draws, 6) : 0.0;
    overtone = seasonal ? 0.1 * uniform(draws, 7) : 0.0;
    phase = 2.0 * std::numbers::pi * uniform(draws, 8);
    noise = std::pow(10.0, -3.0 + 2.0 * uniform(draws, 9));
  }

  [[nodiscard]] double at(std::size_t step, std::size_t period) const {
    const double time = static_cast<double>(step) / static_cast<double>(length);
    const double angle =
        phase + 2.0 * std::numbers::pi * static_cast<double>(step) / static_cast<double>(period);
    return level + slope * std::min(time, turn) + later_slope * std::max(time - turn, 0.0) +
           season * std::sin(angle) + overtone * std::sin(2.0 * angle);
  }
};

void add_series(const SeriesOptions& options, std::size_t number, SeriesSplits& splits) {
  constexpr double kMemory = 0.8;
  const SeriesShape shape(options, number);
  const Stream noise = stream(options.seed, Part::kSeriesNoise, number);
  const std::string name = fmt::format("G{}", number + 1);
  Series train{name, {}};
  Series test{name, {}};
  double error = 0;
  for (std::size_t step = 0; step < shape.length + options.horizon; ++step) {
    error = kMemory * error + shape.noise * normal(noise, step);
    Series& part = step < shape.length ? train : test;
    part.values.push_back(static_cast<float>(std::exp(shape.at(step, options.period) + error)));
  }
  splits.train.push_back(std::move(train));
  splits.test.push_back(std::move(test));
}

class Writer {
 public:
  explicit Writer(const GeneratedTextOptions& options) : options_(options) {
    const std::size_t words = options.words - kSpecial;
    std::vector<double> weights;
    for (std::size_t rank = 1; rank <= words; ++rank) weights.push_back(1.0 / static_cast<double>(rank));
    zipf_ = cumulative_of(std::move(weights));
    for (std::size_t topic = 0; topic < options.topics; ++topic) {
      ranked_.push_back(random_permutation(stream(options.seed, Part::kFrequency, topic), words));
    }
  }

  // Text number `number` of this chain, of so many tokens.
  [[nodiscard]] std::vector<std::int32_t> write(std::uint64_t number, std::size_t count) const {
    constexpr std::uint64_t kDraws = 4;  // of a token
    constexpr double kLineEnds = 0.05;
    constexpr double kTopicChanges = 0.1;
    const Stream draws = stream(options_.seed, Part::kToken, number);
    std::vector<std::int32_t> tokens;
    std::size_t topic = 0;
    std::size_t before = 0;
    std::size_t last = kEndOfLine;
    for (std::uint64_t draw = 0; tokens.size() < count; draw += kDraws) {
      if (last == kEndOfLine && uniform(draws, draw) < kTopicChanges) {
        topic = uniform_below(draws, draw + 1, options_.topics);
      }
      const bool ends = last != kEndOfLine && uniform(draws, draw) < kLineEnds;
      const std::size_t next =
          ends ? kEndOfLine
               : next_word(topic, before, last, uniform(draws, draw + 2), uniform(draws, draw + 3));
      tokens.push_back(static_cast<std::int32_t>(next));
      before = std::exchange(last, next);
    }
    return tokens;
  }

 private:
  static constexpr std::size_t kSpecial = 2;

  [[nodiscard]] std::size_t word_at(std::size_t topic, double draw) const {
    return kSpecial + ranked_[topic][pick(zipf_, draw)];
  }

  // Any word of the topic, or one of the few that are likely after `last` and the kind of the word
  // before it: likely ones are drawn anew every time, from a stream that knows only these.
  [[nodiscard]] std::size_t next_word(std::size_t topic, std::size_t before, std::size_t last, double which,
                                      double draw) const {
    constexpr std::array<double, 4> kLikely{0.4, 0.6, 0.7, 0.75};  // cumulative
    constexpr std::size_t kKinds = 4;
    const auto likely = std::ranges::upper_bound(kLikely, which);
    if (likely == kLikely.end()) return word_at(topic, draw);
    const std::uint64_t position = (last * kKinds + before % kKinds) * kLikely.size() +
                                   static_cast<std::uint64_t>(likely - kLikely.begin());
    return word_at(topic, uniform(stream(options_.seed, Part::kNextWord, topic), position));
  }

  GeneratedTextOptions options_;
  std::vector<double> zipf_;
  std::vector<std::vector<Index>> ranked_;  // of a topic: its words, the most frequent first
};

}  // namespace

LabelledRows generate_rows(const RowOptions& options, Split split) {
  constexpr std::string_view kWhere = "generate_rows";
  require_counts(kWhere, options.examples, options.test_examples);
  require_range<std::size_t>(kWhere, "dim", options.dim, 1, 1U << 20U);
  require_range<std::size_t>(kWhere, "classes", options.classes, 2, 1000);
  require_range(kWhere, "condition", options.condition, 1.0, 1e12);
  require_range(kWhere, "label_noise", options.label_noise, 0.0, 1.0);
  const Rows rows(options);
  LabelledRows all{options.dim, {}, {}, std::vector<std::int64_t>(options.classes)};
  std::iota(all.label_names.begin(), all.label_names.end(), 0);
  const std::size_t count = split == Split::kTrain ? options.examples : options.test_examples;
  for (std::size_t i = 0; i < count; ++i) rows.add(number_of(i, split), all);
  return all;
}

LabelledImages generate_images(const ImageOptions& options, Split split) {
  constexpr std::string_view kWhere = "generate_images";
  require_counts(kWhere, options.examples, options.test_examples);
  require_range<std::size_t>(kWhere, "shift", options.shift, 0, kSide);
  require_range(kWhere, "noise", options.noise, 0.0, 100.0);
  std::vector<std::vector<double>> patterns;
  for (std::size_t c = 0; c < kImageClasses; ++c) patterns.push_back(make_pattern(options, c));
  const std::size_t count = split == Split::kTrain ? options.examples : options.test_examples;
  LabelledImages all{{{count, kSide, kSide}, {}}, {{count}, {}}};
  for (std::size_t i = 0; i < count; ++i) add_image(options, patterns, number_of(i, split), all);
  return all;
}

SeriesSplits generate_series(const SeriesOptions& options) {
  constexpr std::string_view kWhere = "generate_series";
  constexpr std::size_t kLongest = 1'000'000;
  require_range<std::size_t>(kWhere, "series", options.series, 1, kMostExamples);
  require_range<std::size_t>(kWhere, "longest", options.longest, 1, kLongest);
  require_range<std::size_t>(kWhere, "shortest", options.shortest, 1, options.longest);
  require_range<std::size_t>(kWhere, "horizon", options.horizon, 1, kLongest);
  require_range<std::size_t>(kWhere, "period", options.period, 1, kLongest);
  SeriesSplits splits;
  for (std::size_t k = 0; k < options.series; ++k) add_series(options, k, splits);
  return splits;
}

Text generate_text(const GeneratedTextOptions& options) {
  constexpr std::string_view kWhere = "generate_text";
  require_range<std::size_t>(kWhere, "tokens", options.tokens, 1, std::numeric_limits<std::uint32_t>::max());
  require_range<std::size_t>(kWhere, "validation_tokens", options.validation_tokens, 0,
                             std::numeric_limits<std::uint32_t>::max());
  require_range<std::size_t>(kWhere, "words", options.words, 3, 1'000'000);
  require_range<std::size_t>(kWhere, "topics", options.topics, 1, 1000);
  const Writer writer(options);
  Text text{{"<unk>", "<eos>"}, writer.write(0, options.tokens), writer.write(1, options.validation_tokens)};
  for (std::size_t k = 2; k < options.words; ++k) text.words.push_back(fmt::format("w{}", k));
  return text;
}

}  // namespace cdgrab::data
