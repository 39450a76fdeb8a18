// SPDX-License-Identifier: Apache-2.0
#include "training/optimum.hpp"

#include <algorithm>
#include <cmath>

#include "tasks/task.hpp"
#include "training/run.hpp"

namespace cdgrab::training {
namespace {

using at::Tensor;

constexpr std::int64_t kAtOnce = 8192;  // examples; bounds the memory, nothing else
constexpr int kRestarts = 20;
constexpr std::int64_t kIterations = 250;
constexpr double kFlat = 1e-11;

/// The objective over all examples; its gradient is added to the model's.
Tensor objective(const tasks::Task& task, const tasks::Model& model, double l2) {
  model.gradient().zero_();
  const auto n = static_cast<double>(task.examples());
  double sum = 0.0;
  for (std::int64_t first = 0; first < task.training().size(); first += kAtOnce) {
    const tasks::Examples some = task.training().slice(first, kAtOnce);
    const Tensor loss = task.loss(model.network(), some) * (static_cast<double>(some.size()) / n);
    loss.backward();
    sum += loss.item<double>();
  }
  const at::NoGradGuard no_grad;
  model.gradient().add_(model.weights(), l2);
  return at::scalar_tensor(sum + 0.5 * l2 * model.weights().square().sum().item<double>(), at::kDouble);
}

}  // namespace

bool has_optimum(std::string_view task) { return task == "logistic"; }

Optimum find_optimum(const Settings& settings) {
  Settings wide = settings;
  wide.source.wide = true;
  const auto task = open(wide);
  const tasks::Model model = task->make_model(wide.seed);
  const auto evaluate = [&] { return objective(*task, model, wide.recipe.l2); };
  Optimum best{evaluate().item<double>(), model.gradient().abs().max().item<double>()};
  // L-BFGS stops where a step changes too little for its taste; begun anew it often goes on.
  for (int restart = 0; restart < kRestarts && best.gradient > kFlat; ++restart) {
    ::torch::optim::LBFGS optimizer(model.parameters(), ::torch::optim::LBFGSOptions(1.0)
                                                            .max_iter(kIterations)
                                                            .history_size(30)
                                                            .tolerance_grad(kFlat)
                                                            .tolerance_change(0.0)
                                                            .line_search_fn("strong_wolfe"));
    optimizer.step([&] { return evaluate(); });
    const double loss = evaluate().item<double>();
    const bool stuck = !(loss < best.loss);
    if (std::isfinite(loss) && loss <= best.loss) best = {loss, model.gradient().abs().max().item<double>()};
    if (stuck) break;
  }
  return best;
}

}  // namespace cdgrab::training
