// SPDX-License-Identifier: Apache-2.0
// An epoch of training steps with observe(loss), counted: two batches, and the next order.
#include "cdgrab/torch/sampler.hpp"
#include "counted.hpp"
#include "models/models.hpp"

namespace {

constexpr std::int64_t kBatch = 8;
constexpr std::size_t kExamples = 2 * kBatch;

/// A layer as rows, and one as factors that knows its sum.
models::Case wide_mlp() {
  torch::nn::Sequential net(torch::nn::Linear(64, 512), torch::nn::ReLU(), torch::nn::Linear(512, 512),
                            torch::nn::ReLU(), torch::nn::Linear(512, 10));
  return models::classifier("MLP", net, {64}, 10);
}

void count_steps(const char* name, models::Case model, const char* spec = "pair",
                 const cdgrab::torch::ObserveOptions& options = {}) {
  const auto [x, y] = model.data(kBatch);
  cdgrab::torch::Sampler sampler(kExamples, spec);
  cost::counted(name, [&] {
    while (sampler.next(kBatch)) {
      const at::Tensor loss = model.loss(x, y);
      sampler.observe(loss, kBatch, options);
      loss.backward();
    }
    sampler.reset();
  });
}

}  // namespace

int main() {
  cost::print_compiler();
  at::set_num_threads(1);
  torch::manual_seed(0);
  count_steps("mlp", wide_mlp());
  count_steps("mlp, fused", wide_mlp(), "pair; fused");
  count_steps("lenet", models::lenet());
  count_steps("lenet, rows late", models::lenet(), "pair",
              {.budget = std::size_t{5} * 61706 * sizeof(float)});
  count_steps("lenet, rows late, fused", models::lenet(), "pair; fused",
              {.budget = std::size_t{5} * 61706 * sizeof(float)});
}
