// SPDX-License-Identifier: Apache-2.0
// LeNet-5 on MNIST, twice from the same weights: in random order, and in the order made from the gradients.
//   example_train_mnist FOLDER [examples=6000] [epochs=5]
#include <torch/torch.h>

#include <algorithm>
#include <cdgrab/error.hpp>
#include <cdgrab/torch/sampler.hpp>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <type_traits>

#include "data/idx.hpp"

namespace {

namespace nn = torch::nn;
namespace data = torch::data;
using nn::functional::cross_entropy;

constexpr std::size_t kBatch = 32;

struct Images : data::datasets::Dataset<Images> {
  explicit Images(const cdgrab::data::LabelledImages& read)
      : pixels(torch::tensor(read.images.values).view({-1, 1, 28, 28}) / 255.0F),
        labels(torch::tensor(read.labels.values).to(torch::kLong)) {}

  void keep_first(std::int64_t count) {
    pixels = pixels.narrow(0, 0, count);
    labels = labels.narrow(0, 0, count);
  }
  data::Example<> get(std::size_t i) override {
    return {pixels[static_cast<std::int64_t>(i)], labels[static_cast<std::int64_t>(i)]};
  }
  [[nodiscard]] std::optional<std::size_t> size() const override { return labels.size(0); }

  torch::Tensor pixels;
  torch::Tensor labels;
};

nn::Sequential lenet() {
  torch::manual_seed(1);
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 6, 5).padding(2)), nn::ReLU(), nn::MaxPool2d(2),
                        nn::Conv2d(6, 16, 5), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                        nn::Linear(16 * 5 * 5, 120), nn::ReLU(), nn::Linear(120, 84), nn::ReLU(),
                        nn::Linear(84, 10));
}

auto make_loader(Images images, const cdgrab::torch::Sampler& sampler) {
  return data::make_data_loader(images.map(data::transforms::Stack<>()), sampler, kBatch);
}

struct Training {
  Training(const Images& images, const char* order)
      : sampler(*images.size(), order), loader(make_loader(images, sampler)) {}

  void epoch() {
    const bool observes = sampler.core().spec().balances();  // random orders make nothing of gradients
    for (auto& batch : *loader) {
      auto loss = cross_entropy(model->forward(batch.data), batch.target);
      if (observes) sampler.observe(loss, batch.data.size(0));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
  }

  nn::Sequential model = lenet();
  torch::optim::SGD optimizer{model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)};
  cdgrab::torch::Sampler sampler;
  std::invoke_result_t<decltype(make_loader), Images, cdgrab::torch::Sampler> loader;
};

struct Score {
  double loss = 0.0;
  double accuracy = 0.0;
};

Score score(nn::Sequential& model, const Images& images) {
  const torch::NoGradGuard no_grad;
  const auto pixels = images.pixels.split(1000);
  const auto labels = images.labels.split(1000);
  const auto n = static_cast<double>(images.labels.size(0));
  Score mean;
  for (std::size_t k = 0; k < pixels.size(); ++k) {
    const auto output = model->forward(pixels[k]);
    const auto share = static_cast<double>(labels[k].size(0)) / n;
    mean.loss += cross_entropy(output, labels[k]).item<double>() * share;
    mean.accuracy += output.argmax(1).eq(labels[k]).sum().item<double>() / n;
  }
  return mean;
}

/// Trains for an epoch and prints its columns; returns the loss over all training examples.
double run_epoch(Training& training, const Images& train, const Images& test) {
  const auto start = std::chrono::steady_clock::now();
  training.epoch();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double loss = score(training.model, train).loss;
  std::printf("   %10.6f %9.2f %% %8.2f", loss, 100.0 * score(training.model, test).accuracy,
              seconds.count());
  std::fflush(stdout);
  return loss;
}

void print_difference(double rr_loss, double pair_loss, int epoch) {
  const double gap = std::abs(rr_loss - pair_loss);
  std::printf("train loss after epoch %d: ", epoch);
  if (gap == 0.0)
    std::printf("the same\n");
  else
    std::printf("%s is lower by %.6f (%.1f %% of the other's)\n", pair_loss < rr_loss ? "pair" : "rr", gap,
                100.0 * gap / std::max(rr_loss, pair_loss));
}

void compare(const Images& train, const Images& test, std::int64_t epochs) {
  Training rr(train, "rr");
  Training pair(train, "pair");
  double rr_loss = 0.0;
  double pair_loss = 0.0;
  std::printf("%5s   %-31s   %s\n", "", "rr: random reshuffling", "pair: ordered by gradients");
  std::printf("epoch   train loss   test acc.  seconds   train loss   test acc.  seconds\n");
  for (std::int64_t epoch = 1; epoch <= epochs; ++epoch) {
    std::printf("%5d", static_cast<int>(epoch));
    rr_loss = run_epoch(rr, train, test);
    pair_loss = run_epoch(pair, train, test);
    std::printf("\n");
  }
  print_difference(rr_loss, pair_loss, static_cast<int>(epochs));
}

std::int64_t parse_count(const std::string& name, const std::string& text, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most)
    throw cdgrab::UserError(
        "example_train_mnist",
        name + " is `" + text + "`; allowed is a number from 1 to " + std::to_string(most) + ", give one");
  return value;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr,
                 "usage: example_train_mnist FOLDER [examples=6000] [epochs=5]\n"
                 "FOLDER has the four files of MNIST, plain or gzipped\n");
    return 2;
  }
  torch::set_num_threads(1);  // batches this small gain little from more, and results depend on the number
  Images train(cdgrab::data::read_mnist(argv[1], cdgrab::data::Split::kTrain));
  const Images test(cdgrab::data::read_mnist(argv[1], cdgrab::data::Split::kTest));
  train.keep_first(parse_count("examples", argc > 2 ? argv[2] : "6000", train.labels.size(0)));
  const std::int64_t epochs = parse_count("epochs", argc > 3 ? argv[3] : "5", 1000);
  compare(train, test, epochs);
} catch (const cdgrab::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
