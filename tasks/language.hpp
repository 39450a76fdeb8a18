// SPDX-License-Identifier: Apache-2.0
// Language models. An example is `length` words in a row and, as targets, each one's next word. Every
// example begins without a past (a recurrent state of zero), so that any order of them makes sense.
#pragma once

#include "tasks/task.hpp"

namespace cdgrab::tasks {

class LanguageTask : public Task {
 public:
  LanguageTask(const TaskInfo& info, bool wide, const Sizes& sizes, std::int64_t vocabulary,
               Examples training, Examples validation);

  Tensor loss(Network& network, const Examples& batch) const override;
  Tensor losses(Network& network, const Examples& batch) const override;
  [[nodiscard]] double measure(Network& network) const override;

  [[nodiscard]] const Sizes& sizes() const { return sizes_; }
  [[nodiscard]] std::int64_t vocabulary() const { return vocabulary_; }

 protected:
  [[nodiscard]] Metric plain_metric() const override { return {"perplexity", false}; }
  /// So that the logits take some 64 MB.
  [[nodiscard]] std::int64_t evaluated_at_once() const override;

 private:
  Sizes sizes_;
  std::int64_t vocabulary_;
};

struct TextExamples {
  Examples training;
  Examples validation;
  std::int64_t vocabulary = 0;
};

/// Throws UserError if the text is shorter than one example.
TextExamples read_text_examples(const Source& source, const Sizes& sizes);

}  // namespace cdgrab::tasks
