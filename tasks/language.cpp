// SPDX-License-Identifier: Apache-2.0
#include "tasks/language.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cdgrab/error.hpp"
#include "data/generated.hpp"
#include "data/text.hpp"
#include "tasks/tensors.hpp"

namespace cdgrab::tasks {
namespace {

/// Words after the last whole example are left out.
Examples chunks_of(const std::vector<std::int32_t>& words, std::size_t length) {
  if (words.size() <= length) return {};
  const auto chunk = static_cast<std::int64_t>(length);
  const std::int64_t count = (static_cast<std::int64_t>(words.size()) - 1) / chunk;
  const Tensor all = tensor_of(words, {static_cast<std::int64_t>(words.size())}).to(at::kLong);
  const auto cut = [&](std::int64_t first) {
    return all.narrow(0, first, count * chunk).view({count, chunk}).contiguous();
  };
  return {cut(0), cut(1)};
}

data::Text generated(const Source& source, const Sizes& sizes) {
  data::GeneratedTextOptions options;
  options.seed = source.data_seed;
  if (source.examples > 0) options.tokens = source.examples * sizes.length + 1;
  return data::generate_text(options);
}

data::Text read(const Source& source, const Sizes& sizes) {
  data::TextOptions options;
  options.max_words = sizes.vocabulary;
  const data::TextFiles files = data::find_text(source.data);
  if (files.validation.empty()) options.held_out = 0.1;
  return data::read_text(files, options);
}

}  // namespace

LanguageTask::LanguageTask(const TaskInfo& info, bool wide, const Sizes& sizes, std::int64_t vocabulary,
                           Examples training, Examples validation)
    : Task(info, wide, std::move(training), std::move(validation)), sizes_(sizes), vocabulary_(vocabulary) {}

Tensor LanguageTask::loss(Network& network, const Examples& batch) const {
  return at::cross_entropy_loss(network.forward(batch.inputs).reshape({-1, vocabulary_}),
                                batch.targets.reshape({-1}));
}

Tensor LanguageTask::losses(Network& network, const Examples& batch) const {
  return at::cross_entropy_loss(network.forward(batch.inputs).reshape({-1, vocabulary_}),
                                batch.targets.reshape({-1}), {}, at::Reduction::None)
      .view(batch.targets.sizes())
      .mean(1);
}

double LanguageTask::measure(Network& network) const {
  const double sum = sum_over(judged(), [&](const Examples& batch) { return losses(network, batch).sum(); });
  return std::exp(sum / static_cast<double>(judged().size()));
}

std::int64_t LanguageTask::evaluated_at_once() const {
  const std::int64_t bytes = vocabulary_ * static_cast<std::int64_t>(sizes_.length * sizeof(float));
  return std::clamp<std::int64_t>(64'000'000 / bytes, 1, 256);
}

TextExamples read_text_examples(const Source& source, const Sizes& sizes) {
  const data::Text text = source.data.empty() ? generated(source, sizes) : read(source, sizes);
  const Examples training = chunks_of(text.train, sizes.length);
  if (training.size() == 0)
    throw UserError("--length", fmt::format("an example is {} words and its text has {}; give a longer text "
                                            "or a smaller --length",
                                            sizes.length, text.train.size()));
  return {first_of(training, source.examples), chunks_of(text.validation, sizes.length),
          static_cast<std::int64_t>(text.words.size())};
}

}  // namespace cdgrab::tasks
