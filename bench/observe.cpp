// SPDX-License-Identifier: Apache-2.0
// What observe(loss) adds to a training step, optimizer included. One thread, plain and observed steps
// interleaved in one run.
//   build/release/bin/bench_observe
#include <fmt/format.h>
#include <sys/resource.h>

#include "cdgrab/torch/sampler.hpp"
#include "models/models.hpp"
#include "timing.hpp"

namespace {

using at::Tensor;

struct Task {
  std::string name;
  models::Case model;
  std::int64_t batch;
  std::size_t rounds;
};

models::Case big_mlp() {
  torch::nn::Sequential net(torch::nn::Linear(784, 1024), torch::nn::ReLU(), torch::nn::Linear(1024, 1024),
                            torch::nn::ReLU(), torch::nn::Linear(1024, 10));
  return models::classifier("MLP 784-1024-1024-10", net, {784}, 10);
}

models::Case big_gpt() {
  models::Gpt model(2000, 128, 128, 2, 2);
  return {"GPT 2x128, T=128", model->parameters(),
          [model](const Tensor& x, const Tensor& y) mutable {
            return models::F::cross_entropy(model->forward(x).reshape({-1, 2000}), y.reshape({-1}));
          },
          [](std::int64_t batch) { return models::tokens(batch, 128, 2000); }};
}

/// A training step, with or without the one new line.
class Loop {
 public:
  Loop(const Task& task, const std::string& spec)
      : model_(task.model),
        data_(task.model.data(task.batch)),
        batch_(task.batch),
        optimizer_(task.model.parameters, torch::optim::SGDOptions(1e-6)) {
    if (!spec.empty())
      sampler_.emplace(static_cast<std::size_t>(task.batch) * 8, spec,
                       cdgrab::SamplerOptions{.record_timings = true});
  }

  void step() {
    if (sampler_ && !sampler_->next(static_cast<std::size_t>(batch_))) {
      sampler_->reset();
      sampler_->next(static_cast<std::size_t>(batch_));
    }
    const Tensor loss = model_.loss(data_.first, data_.second);
    if (sampler_) walk_ += bench::seconds_of([&] { sampler_->observe(loss, batch_); });
    optimizer_.zero_grad();
    loss.backward();
    optimizer_.step();
    ++steps_;
  }

  /// Milliseconds per step in reading the graph, and in products, signs and updates.
  [[nodiscard]] double walk() const { return 1e3 * walk_ / static_cast<double>(steps_); }
  [[nodiscard]] double balance() {
    return 1e3 * sampler_->core().timings().balance / static_cast<double>(steps_);
  }

 private:
  models::Case model_;
  std::pair<Tensor, Tensor> data_;
  std::int64_t batch_;
  torch::optim::SGD optimizer_;
  std::optional<cdgrab::torch::Sampler> sampler_;
  double walk_ = 0.0;
  std::size_t steps_ = 0;
};

}  // namespace

int main() {
  at::set_num_threads(1);
  torch::manual_seed(0);
  const std::vector<Task> tasks = {{"MLP", big_mlp(), 64, 41},
                                   {"LeNet-5", models::lenet(), 64, 41},
                                   {"LeNet-5", models::lenet(), 16, 101},
                                   {"GPT 2x128, T=128", big_gpt(), 16, 11}};
  const std::vector<std::string> specs = {"pair", "mean"};
  fmt::print("A training step with observe(loss), as a multiple of the same step without (medians)\n\n");
  fmt::print("{:<20} {:>4} {:>10} {:>8} {:>8}   {:>9} {:>11} {:>13}\n", "model", "B", "plain, ms", "pair",
             "mean", "pair adds", "of it: walk", "balance, ms");
  for (const Task& task : tasks) {
    std::vector<std::unique_ptr<Loop>> loops;
    std::vector<bench::Contender> contenders;
    for (const std::string& spec : {std::string(), specs[0], specs[1]}) {
      loops.push_back(std::make_unique<Loop>(task, spec));
      contenders.push_back({spec, [loop = loops.back().get()] { loop->step(); }, {}});
    }
    bench::interleave(contenders, task.rounds);
    const double plain = contenders[0].median();
    fmt::print("{:<20} {:>4} {:>10.2f} {:>8.2f} {:>8.2f}   {:>9.2f} {:>11.2f} {:>13.2f}\n", task.name,
               task.batch, 1e3 * plain, contenders[1].median() / plain, contenders[2].median() / plain,
               1e3 * (contenders[1].median() - plain), loops[1]->walk(), loops[1]->balance());
  }
}
