// SPDX-License-Identifier: Apache-2.0
// An LSTM language model. The cells are made of linear layers, in float32 and float64 alike.
#include <cmath>

#include "tasks/language.hpp"

namespace cdgrab::tasks {
namespace {

namespace nn = ::torch::nn;

class LstmLayer : public nn::Module {
 public:
  explicit LstmLayer(std::int64_t width)
      : input_(register_module("input", nn::Linear(width, 4 * width))),
        recurrent_(
            register_module("recurrent", nn::Linear(nn::LinearOptions(width, 4 * width).bias(false)))) {}

  /// B x T x width to the same. The inputs' share of all gates is one product.
  Tensor forward(const Tensor& inputs) {
    const auto given = input_(inputs).unbind(1);
    Tensor cell;
    Tensor output;
    std::vector<Tensor> outputs;
    for (const Tensor& share : given) {
      const Tensor gates = output.defined() ? share + recurrent_(output) : share;
      const auto parts = gates.chunk(4, 1);
      const Tensor added = at::sigmoid(parts[0]) * at::tanh(parts[2]);
      cell = cell.defined() ? at::sigmoid(parts[1]) * cell + added : added;
      output = at::sigmoid(parts[3]) * at::tanh(cell);
      outputs.push_back(output.unsqueeze(1));
    }
    return at::cat(outputs, 1);
  }

 private:
  nn::Linear input_;
  nn::Linear recurrent_;
};

class Lstm : public Network {
 public:
  Lstm(std::int64_t vocabulary, std::int64_t width, std::size_t layers)
      : words_(register_module("words", nn::Embedding(vocabulary, width))) {
    for (std::size_t l = 0; l < layers; ++l)
      layers_.push_back(register_module("layer" + std::to_string(l), std::make_shared<LstmLayer>(width)));
    head_ = register_module("head", nn::Linear(width, vocabulary));
    const at::NoGradGuard no_grad;
    words_->weight.uniform_(-0.1, 0.1);
    head_->weight.uniform_(-0.1, 0.1);
    head_->bias.zero_();
  }

  Tensor forward(const Tensor& inputs) override {
    Tensor x = words_(inputs);
    for (const auto& layer : layers_) x = layer->forward(x);
    return head_(x);
  }

 private:
  nn::Embedding words_;
  std::vector<std::shared_ptr<LstmLayer>> layers_;
  nn::Linear head_{nullptr};
};

class LstmTask : public LanguageTask {
 public:
  using LanguageTask::LanguageTask;

 protected:
  [[nodiscard]] std::shared_ptr<Network> make_network() const override {
    return std::make_shared<Lstm>(vocabulary(), static_cast<std::int64_t>(sizes().width), sizes().layers);
  }
};

}  // namespace

std::shared_ptr<const Task> open_lstm(const TaskInfo& info, const Source& source, const Sizes& sizes) {
  const TextExamples text = read_text_examples(source, sizes);
  return std::make_shared<LstmTask>(info, source.wide, sizes, text.vocabulary, text.training,
                                    text.validation);
}

}  // namespace cdgrab::tasks
