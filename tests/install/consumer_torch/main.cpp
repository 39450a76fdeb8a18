// SPDX-License-Identifier: Apache-2.0
#include <cdgrab/torch/sampler.hpp>
#include <cstdio>

int main() {
  constexpr std::int64_t kExamples = 50;
  torch::manual_seed(1);
  const auto x = torch::randn({kExamples, 3});
  const auto y = x.sum(1, true);
  torch::nn::Linear model(3, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto loss_of = [&](const at::Tensor& index) {
    return torch::mse_loss(model->forward(x.index_select(0, index)), y.index_select(0, index));
  };
  const double before = loss_of(torch::arange(kExamples)).item<double>();

  cdgrab::torch::Sampler sampler(kExamples, "pair", {.seed = 3});
  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.reset();
    while (const auto examples = sampler.next(8)) {
      const std::vector<std::int64_t> index(examples->begin(), examples->end());
      const auto loss = loss_of(torch::tensor(index));
      sampler.observe(loss, static_cast<std::int64_t>(index.size()));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
    if (sampler.core().report().observed != kExamples) return 1;
  }
  sampler.end_epoch();

  const double after = loss_of(torch::arange(kExamples)).item<double>();
  std::printf("torch %s, loss %.3f to %.3f\n", TORCH_VERSION, before, after);
  return cdgrab::is_permutation(sampler.core().order()) && sampler.core().epoch() == 2 && after < before ? 0
                                                                                                         : 1;
}
