// SPDX-License-Identifier: Apache-2.0
// What observe(loss) adds to a training step, optimizer included: time on one thread, plain and observed
// steps interleaved in one run, and peak memory, each in a process of its own.
//   build/release/bin/bench_observe
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "cdgrab/torch/sampler.hpp"
#include "models/models.hpp"
#include "timing.hpp"

namespace {

using at::Tensor;

struct Task {
  std::string name;
  std::function<models::Case()> model;
  std::int64_t batch;
  std::size_t rounds;
};

models::Case big_mlp() {
  torch::nn::Sequential net(torch::nn::Linear(784, 1024), torch::nn::ReLU(), torch::nn::Linear(1024, 1024),
                            torch::nn::ReLU(), torch::nn::Linear(1024, 10));
  return models::classifier("MLP", net, {784}, 10);
}

models::Case big_gpt() {
  models::Gpt model(2000, 128, 128, 2, 2);
  return {"GPT", model->parameters(),
          [model](const Tensor& x, const Tensor& y) mutable {
            return models::F::cross_entropy(model->forward(x).reshape({-1, 2000}), y.reshape({-1}));
          },
          [](std::int64_t batch) { return models::tokens(batch, 128, 2000); }};
}

const std::vector<Task>& tasks() {
  static const std::vector<Task> kTasks = {{"MLP 784-1024-1024-10", big_mlp, 64, 41},
                                           {"LeNet-5 on 28x28", models::lenet, 64, 41},
                                           {"LeNet-5 on 28x28", models::lenet, 16, 101},
                                           {"GPT 2x128, T=128", big_gpt, 16, 15}};
  return kTasks;
}

/// A training step, with or without the one new line.
class Loop {
 public:
  Loop(const Task& task, const std::string& spec)
      : model_(task.model()),
        data_(model_.data(task.batch)),
        batch_(task.batch),
        optimizer_(model_.parameters, torch::optim::SGDOptions(1e-6)) {
    if (spec != "plain")
      sampler_.emplace(static_cast<std::size_t>(task.batch) * 8, spec,
                       cdgrab::SamplerOptions{.record_timings = true});
  }

  void step() {
    if (sampler_ && !sampler_->next(static_cast<std::size_t>(batch_))) {
      sampler_->reset();
      sampler_->next(static_cast<std::size_t>(batch_));
    }
    const Tensor loss = model_.loss(data_.first, data_.second);
    if (sampler_) sampler_->observe(loss, batch_);
    optimizer_.zero_grad();
    loss.backward();
    optimizer_.step();
    ++steps_;
  }

  /// Milliseconds per step.
  [[nodiscard]] cdgrab::torch::ObserveTimings timings() const {
    cdgrab::torch::ObserveTimings t = sampler_->timings();
    for (double* part : {&t.walk, &t.gradients, &t.products, &t.signs, &t.update})
      *part *= 1e3 / static_cast<double>(steps_);
    return t;
  }
  [[nodiscard]] double parameter_megabytes() const {
    double total = 0.0;
    for (const Tensor& p : model_.parameters) total += static_cast<double>(p.nbytes());
    return total / 1e6;
  }

 private:
  models::Case model_;
  std::pair<Tensor, Tensor> data_;
  std::int64_t batch_;
  torch::optim::SGD optimizer_;
  std::optional<cdgrab::torch::Sampler> sampler_;
  std::size_t steps_ = 0;
};

const std::array<std::string, 4> kSketched = {"pair; sketch=kron:8", "pair; sketch=kron:16",
                                              "pair; sketch=pca:8", "pair; sketch=pca:16"};

/// Sketches beside the plain step, in a run of their own.
void measure_sketches() {
  fmt::print("\nThe same with sketches (medians)\n\n{:<20} {:>3} {:>9}", "model", "B", "plain, ms");
  for (const std::string& spec : kSketched) fmt::print(" {:>21}", spec);
  fmt::print("   {:>10} {:>5} {:>9} {:>5}\n", "pca:16 adds", "walk", "gradients", "signs");
  for (const Task& task : tasks()) {
    std::vector<std::unique_ptr<Loop>> loops;
    std::vector<bench::Contender> contenders;
    const auto add = [&](const std::string& spec) {
      loops.push_back(std::make_unique<Loop>(task, spec));
      contenders.push_back({spec, [loop = loops.back().get()] { loop->step(); }, {}});
    };
    add("plain");
    for (const std::string& spec : kSketched) add(spec);
    bench::interleave(contenders, task.rounds);
    const double plain = contenders[0].median();
    fmt::print("{:<20} {:>3} {:>9.2f}", task.name, task.batch, 1e3 * plain);
    for (std::size_t i = 1; i < contenders.size(); ++i)
      fmt::print(" {:>21.3f}", contenders[i].median() / plain);
    const auto t = loops.back()->timings();
    fmt::print("   {:>10.2f} {:>5.2f} {:>9.2f} {:>5.2f}\n", 1e3 * (contenders.back().median() - plain),
               t.walk, t.gradients, t.signs);
  }
}

void measure_time() {
  const std::array<std::string, 5> specs = {"plain", "pair", "pair; fused", "mean", "mean; fused"};
  fmt::print("A training step with observe(loss), as a multiple of the same step without (medians)\n\n");
  fmt::print("{:<20} {:>3} {:>9} {:>6} {:>6} {:>6} {:>6}   {:>9}   {:>5} {:>9} {:>8} {:>5} {:>6}\n", "model",
             "B", "plain, ms", "pair", "fused", "mean", "fused", "pair adds", "walk", "gradients", "products",
             "signs", "update");
  for (const Task& task : tasks()) {
    std::vector<std::unique_ptr<Loop>> loops;
    std::vector<bench::Contender> contenders;
    for (const std::string& spec : specs) {
      loops.push_back(std::make_unique<Loop>(task, spec));
      contenders.push_back({spec, [loop = loops.back().get()] { loop->step(); }, {}});
    }
    bench::interleave(contenders, task.rounds);
    const double plain = contenders[0].median();
    const auto t = loops[1]->timings();
    fmt::print("{:<20} {:>3} {:>9.2f}", task.name, task.batch, 1e3 * plain);
    for (std::size_t k = 1; k < specs.size(); ++k) fmt::print(" {:>6.2f}", contenders[k].median() / plain);
    fmt::print("   {:>9.2f}   {:>5.2f} {:>9.2f} {:>8.2f} {:>5.2f} {:>6.2f}\n",
               1e3 * (contenders[1].median() - plain), t.walk, t.gradients, t.products, t.signs, t.update);
  }
}

/// Megabytes, as the kernel has counted them.
double memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stod(line.substr(field.size() + 1)) / 1e3;
  return 0.0;
}

/// In a process that does nothing else.
void print_peak(const Task& task, const std::string& spec) {
  Loop loop(task, spec);
  const double before = memory("VmRSS");
  for (int i = 0; i < 12; ++i) loop.step();
  fmt::print("{} {}\n", memory("VmHWM") - before, loop.parameter_megabytes());
}

struct Peak {
  double step = 0.0;
  double parameters = 0.0;
};

Peak peak_of(std::size_t task, const std::string& spec) {
  const std::string command = fmt::format("/proc/{}/exe {} '{}'", getpid(), task, spec);
  FILE* out = popen(command.c_str(), "r");
  Peak peak;
  if (out == nullptr || std::fscanf(out, "%lf %lf", &peak.step, &peak.parameters) != 2)
    fmt::print(stderr, "bench_observe: '{}' printed no figures\n", command);
  if (out != nullptr) pclose(out);
  return peak;
}

void measure_memory() {
  fmt::print("\nPeak memory of a step beyond model and data, megabytes, in fresh processes\n\n");
  fmt::print("{:<20} {:>3} {:>11} {:>8} {:>8} {:>8} {:>8} {:>8}   {:>14}\n", "model", "B", "parameters",
             "plain", "pair", "mean", "kron:16", "pca:16", "pair, in copies");
  for (std::size_t i = 0; i < tasks().size(); ++i) {
    const Peak plain = peak_of(i, "plain");
    const Peak pair = peak_of(i, "pair");
    const Peak mean = peak_of(i, "mean");
    const Peak kron = peak_of(i, kSketched[1]);
    const Peak pca = peak_of(i, kSketched[3]);
    fmt::print("{:<20} {:>3} {:>11.1f} {:>8.1f} {:>+8.1f} {:>+8.1f} {:>+8.1f} {:>+8.1f}   {:>14.1f}\n",
               tasks()[i].name, tasks()[i].batch, plain.parameters, plain.step, pair.step - plain.step,
               mean.step - plain.step, kron.step - plain.step, pca.step - plain.step,
               (pair.step - plain.step) / plain.parameters);
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  if (argc == 3) {
    print_peak(tasks().at(std::stoul(argv[1])), argv[2]);
    return 0;
  }
  measure_time();
  measure_sketches();
  measure_memory();
}
