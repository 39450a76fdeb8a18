// SPDX-License-Identifier: Apache-2.0
// LeNet-5 on images of 28 x 28 (padded by two pixels, so that the layers are the same) or 3 x 32 x 32.
#include <filesystem>

#include "data/cifar10.hpp"
#include "data/generated.hpp"
#include "data/idx.hpp"
#include "tasks/classifier.hpp"
#include "tasks/tensors.hpp"

namespace cdgrab::tasks {
namespace {

namespace fs = std::filesystem;
namespace nn = ::torch::nn;

class LeNet : public Network {
 public:
  LeNet(std::int64_t channels, std::int64_t side) {
    const std::int64_t padding = side == 28 ? 2 : 0;
    first_ = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(channels, 6, 5).padding(padding)));
    second_ = register_module("conv2", nn::Conv2d(6, 16, 5));
    third_ = register_module("fc1", nn::Linear(16 * 5 * 5, 120));
    fourth_ = register_module("fc2", nn::Linear(120, 84));
    last_ = register_module("fc3", nn::Linear(84, 10));
  }

  Tensor forward(const Tensor& inputs) override {
    Tensor x = at::max_pool2d(at::relu(first_(inputs)), 2);
    x = at::max_pool2d(at::relu(second_(x)), 2).flatten(1);
    return last_(at::relu(fourth_(at::relu(third_(x)))));
  }

 private:
  nn::Conv2d first_{nullptr}, second_{nullptr};
  nn::Linear third_{nullptr}, fourth_{nullptr}, last_{nullptr};
};

class LeNetTask : public Classifier {
 public:
  using Classifier::Classifier;

 protected:
  [[nodiscard]] std::shared_ptr<Network> make_network() const override {
    return std::make_shared<LeNet>(training().inputs.size(1), training().inputs.size(3));
  }
  [[nodiscard]] std::int64_t evaluated_at_once() const override { return 500; }
};

data::LabelledImages generated(const Source& source, data::Split split) {
  data::ImageOptions options;
  options.seed = source.data_seed;
  if (source.examples > 0) options.examples = source.examples;
  return data::generate_images(options, split);
}

bool holds_cifar10(const fs::path& folder) {
  return fs::exists(folder / "data_batch_1.bin") || fs::exists(folder / "data_batch_1.bin.gz");
}

data::LabelledImages read(const Source& source, data::Split split) {
  if (source.data.empty()) return generated(source, split);
  return holds_cifar10(source.data) ? data::read_cifar10(source.data, split)
                                    : data::read_mnist(source.data, split);
}

}  // namespace

std::shared_ptr<const Task> open_lenet(const TaskInfo& info, const Source& source) {
  const Examples training = images_of(read(source, data::Split::kTrain), source.wide);
  return std::make_shared<LeNetTask>(info, source.wide, first_of(training, source.examples),
                                     images_of(read(source, data::Split::kTest), source.wide));
}

}  // namespace cdgrab::tasks
