// SPDX-License-Identifier: Apache-2.0
// A small GPT-2, without dropout as in the papers.
#include "models/models.hpp"
#include "tasks/language.hpp"

namespace cdgrab::tasks {
namespace {

class GptNetwork : public Network {
 public:
  GptNetwork(std::int64_t vocabulary, const Sizes& sizes)
      : gpt_(register_module("gpt", models::Gpt(vocabulary, static_cast<std::int64_t>(sizes.length),
                                                static_cast<std::int64_t>(sizes.width),
                                                static_cast<std::int64_t>(sizes.layers),
                                                static_cast<std::int64_t>(sizes.heads)))) {
    const at::NoGradGuard no_grad;
    // GPT-2's: matrices N(0, 0.02^2), biases 0, norms as they are.
    for (const auto& item : named_parameters()) {
      const bool is_bias = item.key().ends_with("bias");
      if (item.value().dim() > 1) item.value().normal_(0.0, 0.02);
      if (is_bias) item.value().zero_();
    }
  }

  Tensor forward(const Tensor& inputs) override { return gpt_->forward(inputs); }

 private:
  models::Gpt gpt_;
};

class GptTask : public LanguageTask {
 public:
  using LanguageTask::LanguageTask;

 protected:
  [[nodiscard]] std::shared_ptr<Network> make_network() const override {
    return std::make_shared<GptNetwork>(vocabulary(), sizes());
  }
};

}  // namespace

std::shared_ptr<const Task> open_gpt(const TaskInfo& info, const Source& source, const Sizes& sizes) {
  const TextExamples text = read_text_examples(source, sizes);
  return std::make_shared<GptTask>(info, source.wide, sizes, text.vocabulary, text.training, text.validation);
}

}  // namespace cdgrab::tasks
