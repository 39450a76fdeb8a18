// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/torch/sampler.hpp"
#include "tasks/task.hpp"
#include "training/feed.hpp"

namespace cdgrab::training {
namespace {

using at::Tensor;
using tasks::Task;

double sum_of(const cdgrab::torch::ObserveTimings& t) {
  return t.walk + t.gradients + t.products + t.signs + t.update + t.order;
}

/// Index by index what the sampler handed out; valid as long as that is.
Tensor as_tensor(std::vector<std::size_t>& examples) {
  static_assert(sizeof(std::size_t) == sizeof(std::int64_t));
  return at::from_blob(examples.data(), {static_cast<std::int64_t>(examples.size())}, at::kLong);
}

cdgrab::torch::Sampler make_sampler(const Task& task, const Order& order, const Settings& settings) {
  SamplerOptions options;
  options.seed = settings.seed;
  options.record_herding = settings.herding;
  options.record_timings = true;
  return {task.examples(), print_spec(order.spec), std::move(options)};
}

class OneWorker final : public Feed {
 public:
  OneWorker(const Task& task, const tasks::Model& model, const Order& order, const Settings& settings)
      : task_(task),
        model_(model),
        order_(order),
        herding_(settings.herding),
        batch_(settings.recipe.batch),
        drop_last_(settings.recipe.drop_last),
        sampler_(make_sampler(task, order, settings)) {}

  bool compute_gradient() override {
    auto examples = sampler_.next(batch_);
    if (!examples) throw InvariantError("Run::step", "an epoch without examples");
    const Tensor loss = task_.loss(model_.network(), task_.training().select(as_tensor(*examples)));
    if (!std::isfinite(loss.item<double>())) return false;
    const bool by_step = order_.spec.unit > 1;
    if (observes() && !by_step)
      sampler_.observe(loss, static_cast<std::int64_t>(examples->size()), {.batch_axis = 0});
    model_.gradient().zero_();
    loss.backward();
    if (observes() && by_step) sampler_.observe_microbatch(model_.parameters());
    return true;
  }

  void end_epoch(std::span<const double> losses) override {
    if (order_.curriculum) sampler_.core().set_scores(losses);
    sampler_.end_epoch();
  }

  [[nodiscard]] std::uint64_t steps_per_epoch() const override { return steps_for(task_.examples()); }
  [[nodiscard]] std::uint64_t steps_left() const override {
    return steps_for(task_.examples() - sampler_.core().position().handed_out);
  }
  [[nodiscard]] double observing() const override { return observes() ? sum_of(sampler_.timings()) : 0.0; }
  [[nodiscard]] std::optional<HerdingReport> herding() const override {
    return herding_ ? sampler_.core().herding() : std::nullopt;
  }
  [[nodiscard]] std::size_t kept_bytes() const override {
    const std::size_t vector = model_.weights().nbytes();
    std::size_t bytes = task_.examples() * 2 * sizeof(Index);
    // An accumulator per node of the tree, and two more vectors for a mean or a carried partner.
    if (order_.spec.balances()) bytes += vector * ((std::size_t{1} << order_.spec.levels()) + 1);
    if (herding_ || order_.spec.name == OrderName::kGreedy) bytes += task_.examples() * vector;
    return bytes;
  }

  [[nodiscard]] State state() override { return sampler_.core().state(); }
  std::string load(const State& state) override {
    sampler_.load_state(state);
    return "";
  }

 private:
  [[nodiscard]] bool observes() const {
    return order_.spec.balances() || order_.spec.name == OrderName::kGreedy || herding_;
  }
  [[nodiscard]] std::uint64_t steps_for(std::size_t examples) const {
    return (drop_last_ ? examples : examples + batch_ - 1) / batch_;
  }

  const Task& task_;
  const tasks::Model& model_;
  Order order_;
  bool herding_;
  std::size_t batch_;
  bool drop_last_;
  mutable cdgrab::torch::Sampler sampler_;  ///< a handle, which has no const one
};

}  // namespace

std::vector<Shape> gradient_shapes(const Task& task, const tasks::Model& model) {
  cdgrab::torch::GradientGeometry geometry;
  geometry.compute(task.loss(model.network(), task.training().slice(0, 1)), 1);
  std::vector<Shape> shapes;
  for (const Tensor& p : geometry.parameters()) shapes.emplace_back(p.sizes().begin(), p.sizes().end());
  return shapes;
}

std::unique_ptr<Feed> feed_one_worker(const Task& task, const tasks::Model& model, const Order& order,
                                      const Settings& settings) {
  return std::make_unique<OneWorker>(task, model, order, settings);
}

}  // namespace cdgrab::training
