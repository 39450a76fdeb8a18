// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/torch/distributed_sampler.hpp"
#include "tasks/task.hpp"
#include "training/feed.hpp"
#include "training/ranks.hpp"
#include "training/split.hpp"

namespace cdgrab::training {
namespace {

using at::Tensor;
using tasks::Task;

Shares deal_examples(const Task& task, const Settings& settings) {
  const Split split = parse_split(settings.split);
  std::vector<std::int64_t> labels;
  if (split.by_label()) labels = task.labels();
  if (split.by_label() && labels.size() != task.examples())
    throw UserError("--split", fmt::format("`{}` with the task `{}`, whose examples have no labels; use even",
                                           settings.split, settings.task));
  return deal(split, task.examples(), settings.workers, labels, settings.seed);
}

DistributedOptions options_of(const Task& task, const tasks::Model& model, const Order& order,
                              const Settings& settings) {
  DistributedOptions options;
  options.seed = settings.seed;
  options.overlap = settings.overlap;
  if (order.spec.sketch.kind == SketchKind::kKron) options.shapes = gradient_shapes(task, model);
  return options;
}

/// Owned by whoever made the run.
std::shared_ptr<Communicator> outliving(Communicator& communicator) {
  return {&communicator, [](Communicator* /*not ours*/) {}};
}

Tensor as_tensor(const std::vector<Index>& examples) {
  Tensor out = at::empty({static_cast<std::int64_t>(examples.size())}, at::kLong);
  std::copy(examples.begin(), examples.end(), out.mutable_data_ptr<std::int64_t>());
  return out;
}

/// T is the type of the weights.
template <class T>
class ManyWorkers final : public Feed {
 public:
  ManyWorkers(const Task& task, const tasks::Model& model, const Order& order, const Settings& settings,
              Communicator& communicator)
      : task_(task),
        model_(model),
        batch_(settings.recipe.batch),
        communicator_(communicator),
        observer_(deal_examples(task, settings), print_spec(order.spec), outliving(communicator),
                  options_of(task, model, order, settings)),
        sampler_(observer_.core()),
        gradients_(sampler_.hosted()),
        steps_left_(steps_per_epoch()) {
    // Where vectors are of examples, the mean of the workers is none of them: a sampler without examples
    // averages by the same rounds.
    if (!by_step()) averager_.emplace(Shares::strided(0, settings.workers), parse_spec("d-rr"), communicator);
    for (Tensor& gradient : gradients_) gradient = at::empty_like(model.gradient());
  }

  bool compute_gradient() override {
    std::vector<std::span<const T>> gradients(sampler_.hosted());
    std::vector<double> weights(sampler_.hosted());
    for (std::size_t h = 0; h < sampler_.hosted(); ++h) {
      const std::vector<Index> examples = sampler_.next(sampler_.first_worker() + h, batch_);
      if (examples.empty()) continue;
      compute_worker(h, examples);
      gradients[h] = {gradients_[h].const_data_ptr<T>(), size()};
      weights[h] = static_cast<double>(examples.size());
    }
    const std::span<T> mean(model_.gradient().mutable_data_ptr<T>(), size());
    (averager_ ? *averager_ : sampler_).average<T>(gradients, weights, mean);
    --steps_left_;
    if (!std::all_of(mean.begin(), mean.end(), [](T x) { return std::isfinite(x); })) return false;
    if (by_example()) observer_.step();
    return true;
  }

  void end_epoch(std::span<const double> /*losses*/) override {
    observer_.end_epoch();
    steps_left_ = steps_per_epoch();
  }

  [[nodiscard]] std::uint64_t steps_per_epoch() const override {
    std::size_t longest = 0;
    for (std::size_t w = 0; w < sampler_.workers(); ++w)
      longest = std::max(longest, sampler_.shares().size(w));
    return steps_for(longest);
  }
  [[nodiscard]] std::uint64_t steps_left() const override { return steps_left_; }
  [[nodiscard]] double observing() const override { return observer_.seconds(); }
  [[nodiscard]] std::size_t kept_bytes() const override {
    const std::size_t vector = model_.weights().nbytes();
    std::size_t bytes = task_.examples() * 2 * sizeof(Index) + sampler_.hosted() * vector;
    // A carry per worker, and an accumulator: of all together, split over the ranks, or of each.
    const bool together = sampler_.spec().name == OrderName::kCoordinatedPair;
    if (sampler_.spec().balances())
      bytes += sampler_.hosted() * vector +
               (together ? vector / communicator_.ranks() : sampler_.hosted() * vector);
    return bytes;
  }

  [[nodiscard]] State state() override { return sampler_.save(); }
  std::string load(const State& state) override {
    const LoadReport report = observer_.load_state(state);
    std::uint64_t left = 0;
    for (std::size_t h = 0; h < sampler_.hosted(); ++h)
      left = std::max(left,
                      steps_for(sampler_.upcoming(sampler_.first_worker() + h, sampler_.examples()).size()));
    const std::vector<std::uint64_t> of_ranks = words_of_all(communicator_, left);
    steps_left_ = *std::max_element(of_ranks.begin(), of_ranks.end());
    return report.text;
  }

 private:
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(model_.weights().numel()); }
  /// Vectors are the gradients of a worker's steps.
  [[nodiscard]] bool by_step() const { return sampler_.spec().balances() && sampler_.spec().unit > 1; }
  [[nodiscard]] bool by_example() const { return sampler_.spec().balances() && sampler_.spec().unit == 1; }
  [[nodiscard]] std::uint64_t steps_for(std::size_t examples) const {
    return (examples + batch_ - 1) / batch_;
  }

  /// The gradient of a hosted worker's batch, and what it observes. Where the loss is not finite, nor is the
  /// gradient, so that all ranks see it in the mean.
  void compute_worker(std::size_t h, const std::vector<Index>& examples) {
    const Tensor loss = task_.loss(model_.network(), task_.training().select(as_tensor(examples)));
    if (!std::isfinite(loss.item<double>())) {
      gradients_[h].fill_(std::numeric_limits<double>::quiet_NaN());
      return;
    }
    if (by_example())
      observer_.observe(loss, static_cast<std::int64_t>(examples.size()), {.batch_axis = 0},
                        sampler_.first_worker() + h);
    model_.gradient().zero_();
    loss.backward();
    gradients_[h].copy_(model_.gradient());
  }

  const Task& task_;
  const tasks::Model& model_;
  std::size_t batch_;
  Communicator& communicator_;
  cdgrab::torch::DistributedSampler observer_;
  DistributedSampler& sampler_;  ///< the observer's
  std::optional<DistributedSampler> averager_;
  std::vector<Tensor> gradients_;  ///< of each hosted worker
  std::uint64_t steps_left_;
};

}  // namespace

std::unique_ptr<Feed> feed_many_workers(const Task& task, const tasks::Model& model, const Order& order,
                                        const Settings& settings, Communicator& communicator) {
  if (settings.source.wide)
    return std::make_unique<ManyWorkers<double>>(task, model, order, settings, communicator);
  return std::make_unique<ManyWorkers<float>>(task, model, order, settings, communicator);
}

}  // namespace cdgrab::training
