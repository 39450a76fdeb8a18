// SPDX-License-Identifier: Apache-2.0
// Small models of every kind that observe() covers. Each is a function from a batch to per-example outputs.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

namespace models {

namespace F = torch::nn::functional;
using at::Tensor;

/// A model, a batch for it, and the mean loss of that batch (or of some of its examples).
struct Case {
  std::string name;
  std::vector<Tensor> parameters;
  std::function<Tensor(const Tensor& input, const Tensor& target)> loss;
  std::function<std::pair<Tensor, Tensor>(std::int64_t batch)> data;
};

template <class Module>
std::vector<Tensor> parameters_of(const Module& module) {
  return module->parameters();
}

inline std::pair<Tensor, Tensor> images(std::int64_t batch, std::vector<std::int64_t> shape,
                                        std::int64_t classes) {
  shape.insert(shape.begin(), batch);
  return {torch::randn(shape), torch::randint(classes, {batch}, torch::kLong)};
}

inline std::pair<Tensor, Tensor> tokens(std::int64_t batch, std::int64_t length, std::int64_t vocabulary) {
  return {torch::randint(vocabulary, {batch, length}, torch::kLong),
          torch::randint(vocabulary, {batch, length}, torch::kLong)};
}

template <class Module>
Case classifier(std::string name, Module module, std::vector<std::int64_t> shape, std::int64_t classes) {
  return {
      std::move(name), module->parameters(),
      [module](const Tensor& x, const Tensor& y) mutable { return F::cross_entropy(module->forward(x), y); },
      [shape, classes](std::int64_t batch) { return images(batch, shape, classes); }};
}

inline Case mlp() {
  torch::nn::Sequential net(torch::nn::Linear(12, 20), torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                            torch::nn::Linear(torch::nn::LinearOptions(20, 16).bias(false)),
                            torch::nn::Tanh(), torch::nn::Linear(16, 5));
  return classifier("MLP", net, {12}, 5);
}

inline Case lenet() {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 6, 5).padding(2)),
                            torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Conv2d(6, 16, 5),
                            torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Flatten(),
                            torch::nn::Linear(16 * 5 * 5, 120), torch::nn::ReLU(), torch::nn::Linear(120, 84),
                            torch::nn::ReLU(), torch::nn::Linear(84, 10));
  return classifier("LeNet5", net, {1, 28, 28}, 10);
}

inline Case convolutions() {
  torch::nn::Sequential net(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).stride(2).padding(1).dilation(2).groups(2)),
      torch::nn::GroupNorm(2, 8), torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 6, {3, 1}).bias(false)), torch::nn::Flatten(),
      torch::nn::Linear(60, 3));
  return classifier("Convolutions", net, {4, 9, 12}, 3);
}

inline Case convolution_1d() {
  torch::nn::Sequential net(torch::nn::Conv1d(torch::nn::Conv1dOptions(3, 6, 3).stride(2).padding(1)),
                            torch::nn::ReLU(), torch::nn::Conv1d(6, 4, 2), torch::nn::Flatten(),
                            torch::nn::Linear(4 * 4, 3));
  return classifier("Convolution1d", net, {3, 10}, 3);
}

/// Attention and layer norm, token and position embeddings; the head shares the token embedding.
struct GptImpl : torch::nn::Module {
  GptImpl(std::int64_t vocabulary, std::int64_t length, std::int64_t width, std::int64_t layers,
          std::int64_t heads)
      : heads_(heads) {
    token_ = register_module("token", torch::nn::Embedding(vocabulary, width));
    position_ = register_parameter("position", 0.1 * torch::randn({length, width}));
    for (std::int64_t l = 0; l < layers; ++l) {
      norm1_->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
      qkv_->push_back(torch::nn::Linear(width, 3 * width));
      out_->push_back(torch::nn::Linear(width, width));
      norm2_->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
      up_->push_back(torch::nn::Linear(width, 4 * width));
      down_->push_back(torch::nn::Linear(4 * width, width));
    }
    for (auto& list : {norm1_, qkv_, out_, norm2_, up_, down_})
      register_module("list" + std::to_string(lists_++), list);
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  }

  Tensor forward(const Tensor& tokens) {
    const auto b = tokens.size(0), t = tokens.size(1);
    Tensor x = token_(tokens) + position_.slice(0, 0, t);
    const auto c = x.size(2);
    for (std::size_t l = 0; l < qkv_->size(); ++l) {
      const Tensor h = norm1_[l]->as<torch::nn::LayerNorm>()->forward(x);
      const auto parts = qkv_[l]->as<torch::nn::Linear>()->forward(h).split(c, 2);
      const auto split = [&](const Tensor& p) { return p.view({b, t, heads_, c / heads_}).transpose(1, 2); };
      const Tensor y =
          at::scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]), {}, 0.0, true);
      x = x + out_[l]->as<torch::nn::Linear>()->forward(y.transpose(1, 2).reshape({b, t, c}));
      const Tensor m = norm2_[l]->as<torch::nn::LayerNorm>()->forward(x);
      x = x +
          down_[l]->as<torch::nn::Linear>()->forward(at::gelu(up_[l]->as<torch::nn::Linear>()->forward(m)));
    }
    return at::linear(norm_(x), token_->weight);
  }

  std::int64_t heads_;
  int lists_ = 0;
  torch::nn::Embedding token_{nullptr};
  Tensor position_;
  torch::nn::ModuleList norm1_, qkv_, out_, norm2_, up_, down_;
  torch::nn::LayerNorm norm_{nullptr};
};
TORCH_MODULE(Gpt);

inline Case gpt(std::int64_t length) {
  Gpt model(11, length, 8, 2, 2);
  return {"Gpt", model->parameters(),
          [model](const Tensor& x, const Tensor& y) mutable {
            return F::cross_entropy(model->forward(x).reshape({-1, 11}), y.reshape({-1}));
          },
          [length](std::int64_t batch) { return tokens(batch, length, 11); }};
}

/// In-place activations, a layer used twice, a parameter that is never used, bare parameters.
struct OddsImpl : torch::nn::Module {
  OddsImpl() {
    shared_ = register_module("shared", torch::nn::Linear(6, 6));
    unused_ = register_parameter("unused", torch::randn({3}));
    bare_ = register_parameter("bare", torch::randn({4, 6}));
    scale_ = register_parameter("scale", torch::rand({6}) + 0.5);
    shift_ = register_parameter("shift", torch::randn({1, 6}));
    gain_ = register_parameter("gain", torch::rand({1}) + 0.5);
  }
  Tensor forward(Tensor x) {
    x = shared_(x).relu_();
    x = shared_(x).relu_() * scale_ - shift_;
    x = x / (scale_ + 1.0).detach() * gain_;
    return at::matmul(x, bare_.t()) + at::linear(x, bare_);
  }
  torch::nn::Linear shared_{nullptr};
  Tensor unused_, bare_, scale_, shift_, gain_;
};
TORCH_MODULE(Odds);

inline Case odds() { return classifier("Odds", Odds(), {6}, 4); }

/// A sequence through plain layers: matrix products over positions, with and without bias.
struct SequenceImpl : torch::nn::Module {
  SequenceImpl() {
    in_ = register_module("in", torch::nn::Linear(5, 7));
    mid_ = register_module("mid", torch::nn::Linear(torch::nn::LinearOptions(7, 7).bias(false)));
    out_ = register_module("out", torch::nn::Linear(7, 3));
  }
  Tensor forward(Tensor x) { return out_(torch::tanh(mid_(torch::relu(in_(x)))).mean(1)); }
  torch::nn::Linear in_{nullptr}, mid_{nullptr}, out_{nullptr};
};
TORCH_MODULE(Sequence);

inline Case sequence() { return classifier("Sequence", Sequence(), {9, 5}, 3); }

inline Case transformer_layer() {
  torch::nn::TransformerEncoderLayer layer(
      torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.0));
  torch::nn::Linear head(8, 3);
  auto parameters = layer->parameters();
  for (const auto& p : head->parameters()) parameters.push_back(p);
  return {"TransformerLayer", parameters,
          [layer, head](const Tensor& x, const Tensor& y) mutable {
            return F::cross_entropy(head(layer->forward(x.transpose(0, 1)).mean(0)), y);
          },
          [](std::int64_t batch) {
            return images(batch, {5, 8}, 3);
          }};
}

inline std::vector<Case> all() {
  return {mlp(), lenet(), convolutions(), convolution_1d(), gpt(6), odds(), sequence(), transformer_layer()};
}

}  // namespace models
