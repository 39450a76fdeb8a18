// SPDX-License-Identifier: Apache-2.0
#include "training/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <variant>

#include "cdgrab/error.hpp"
#include "cdgrab/self_communicator.hpp"
#include "cdgrab/stopwatch.hpp"
#include "tasks/task.hpp"
#include "training/average.hpp"
#include "training/feed.hpp"
#include "training/optimizer.hpp"
#include "training/ranks.hpp"
#include "training/schedule.hpp"

namespace cdgrab::training {
namespace {

using nlohmann::ordered_json;
using tasks::Task;

constexpr double kNotFinite = std::numeric_limits<double>::quiet_NaN();
constexpr std::string_view kSampler = "sampler";

std::uint64_t hash_bytes(const void* data, std::size_t count) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3ULL;
  return hash;
}

/// T is the type of the weights.
template <class T>
class Typed {
 public:
  Typed(const tasks::Model& model, const tasks::Recipe& recipe)
      : weights_(model.weights().mutable_data_ptr<T>(), static_cast<std::size_t>(model.weights().numel())),
        gradient_(model.gradient().const_data_ptr<T>(), weights_.size()),
        optimizer_(recipe, weights_.size()) {}

  void step(double rate) { optimizer_.step(weights_, gradient_, rate); }
  void add_to(TailAverage& average) const { average.add<T>(weights_); }
  [[nodiscard]] double squared_length() const {
    return std::inner_product(weights_.begin(), weights_.end(), weights_.begin(), 0.0, std::plus<>(),
                              [](T a, T b) { return static_cast<double>(a) * static_cast<double>(b); });
  }
  /// Calls look() with the average as weights, and puts them back.
  template <class Look>
  void with(const TailAverage& average, const Look& look) {
    const std::vector<T> own(weights_.begin(), weights_.end());
    average.mean<T>(weights_);
    look();
    std::copy(own.begin(), own.end(), weights_.begin());
  }
  [[nodiscard]] std::uint64_t hash() const { return hash_bytes(weights_.data(), weights_.size_bytes()); }
  [[nodiscard]] std::vector<double> copy() const { return {weights_.begin(), weights_.end()}; }

  void save(State& state) const {
    state.set<T>("weights", weights_);
    optimizer_.save(state);
  }
  void load(const State& state) {
    const std::vector<T> weights = state.elements<T>("weights", weights_.size());
    optimizer_.load(state);
    std::copy(weights.begin(), weights.end(), weights_.begin());
  }

 private:
  std::span<T> weights_;
  std::span<const T> gradient_;
  WeightOptimizer<T> optimizer_;
};

using AnyTyped = std::variant<Typed<float>, Typed<double>>;

AnyTyped make_typed(const tasks::Model& model, const Settings& settings) {
  if (settings.source.wide) return Typed<double>(model, settings.recipe);
  return Typed<float>(model, settings.recipe);
}

Settings checked(Settings settings, const Task& task, std::size_t ranks) {
  check_settings(settings);
  if (settings.recipe.batch > task.examples())
    throw UserError("--batch", fmt::format("{} examples in a step, but there are {}; give at most as many",
                                           settings.recipe.batch, task.examples()));
  const Order order = parse_order(settings.order);
  if (!order.spec.distributed() && ranks > 1)
    throw UserError("--order",
                    fmt::format("`{}` orders all examples for one worker, and there are {} ranks; use "
                                "cd-pair, id-pair or d-rr, or start one process",
                                order.label, ranks));
  if (settings.workers == 0) settings.workers = ranks;
  return settings;
}

std::unique_ptr<Feed> make_feed(const Task& task, const tasks::Model& model, const Settings& settings,
                                Communicator& communicator) {
  const Order order = parse_order(settings.order);
  return order.spec.distributed() ? feed_many_workers(task, model, order, settings, communicator)
                                  : feed_one_worker(task, model, order, settings);
}

}  // namespace

class Run::Impl {
 public:
  /// Without a communicator there is one rank.
  Impl(std::shared_ptr<const Task> task, const Settings& settings, Communicator* communicator)
      : communicator_(communicator == nullptr ? alone_ : *communicator),
        settings_(checked(settings, *task, communicator_.ranks())),
        task_(std::move(task)),
        facts_(facts_of(*task_)),
        model_(task_->make_model(settings.seed)),
        feed_(make_feed(*task_, model_, settings_, communicator_)),
        schedule_(settings.recipe, steps_per_epoch() * settings.recipe.epochs),
        typed_(make_typed(model_, settings)) {}

  bool step();
  [[nodiscard]] bool finished() const {
    return !records_.empty() &&
           (records_.back().diverged || records_.back().epoch >= settings_.recipe.epochs);
  }
  [[nodiscard]] std::uint64_t steps_per_epoch() const { return feed_->steps_per_epoch(); }
  [[nodiscard]] std::uint64_t weights_hash() const {
    return std::visit([](const auto& typed) { return typed.hash(); }, typed_);
  }
  [[nodiscard]] Memory memory() const;
  [[nodiscard]] State state();
  std::string load(const State& state);
  [[nodiscard]] std::vector<double> weights() const {
    return std::visit([](const auto& typed) { return typed.copy(); }, typed_);
  }

  SelfCommunicator alone_;
  Communicator& communicator_;
  Settings settings_;
  std::shared_ptr<const Task> task_;
  TaskFacts facts_;
  tasks::Model model_;
  std::unique_ptr<Feed> feed_;
  RateSchedule schedule_;
  AnyTyped typed_;
  TailAverage average_;
  std::vector<EpochRecord> records_;
  std::uint64_t steps_ = 0;

 private:
  [[nodiscard]] bool averages() const {
    return settings_.average == Average::kTail &&
           records_.size() > TailAverage::first_epoch(settings_.recipe.epochs);
  }
  /// True if an epoch ended.
  bool train();
  /// False if a loss was not finite: then there was no step.
  bool move_weights();
  void end_epoch(bool diverged);
  /// As rank 0 sees it.
  Score score();
  Score evaluate();

  Seconds seconds_;             ///< of the epoch under way
  std::vector<double> losses_;  ///< of the training examples, as evaluated last
};

bool Run::Impl::step() try {
  if (finished()) throw UserError("Run::step", "the run is finished; no step is left, make another run");
  at::set_num_threads(static_cast<int>(settings_.threads));
  if (!records_.empty()) return train();
  end_epoch(false);
  return true;
} catch (const CommunicationError& error) {
  throw CommunicationError("train",
                           fmt::format("epoch {}, step {}, on rank {} of {}: {}", records_.size(), steps_,
                                       communicator_.rank(), communicator_.ranks(), error.what()));
}

bool Run::Impl::train() {
  const bool finite = move_weights();
  ++steps_;
  const bool ended = !finite || feed_->steps_left() == 0;
  if (ended) end_epoch(!finite);
  return ended;
}

bool Run::Impl::move_weights() {
  const double observed_before = feed_->observing();
  double elapsed = 0.0;
  {
    const Stopwatch watch(&elapsed);
    if (!feed_->compute_gradient()) return false;
    const double rate = schedule_.rate(steps_);
    std::visit(
        [&](auto& typed) {
          typed.step(rate);
          if (averages()) typed.add_to(average_);
        },
        typed_);
  }
  const double observing = feed_->observing() - observed_before;
  seconds_.observing += observing;
  seconds_.training += elapsed - observing;
  return true;
}

void Run::Impl::end_epoch(bool diverged) {
  EpochRecord record;
  record.epoch = records_.size();
  record.lr = schedule_.rate(steps_ == 0 ? 0 : steps_ - 1);
  require_same_weights(communicator_, weights_hash());
  {
    const Stopwatch watch(&seconds_.evaluating);
    if (average_.count() > 0 && !diverged)
      std::visit([&](auto& typed) { typed.with(average_, [&] { record.average = score(); }); }, typed_);
    record.last = diverged ? Score{kNotFinite, kNotFinite} : score();
  }
  record.diverged = diverged || !std::isfinite(record.last.loss);
  if (record.epoch > 0 && !record.diverged) {
    const Stopwatch watch(&seconds_.ordering);
    feed_->end_epoch(losses_);
    record.herding = feed_->herding();
    schedule_.end_epoch(record.last.loss);
  }
  seconds_.observing += seconds_.ordering;
  record.seconds = std::exchange(seconds_, {});
  records_.push_back(record);
}

Score Run::Impl::score() {
  return value_of_first(communicator_, communicator_.rank() == 0 ? evaluate() : Score{});
}

Score Run::Impl::evaluate() {
  losses_ = task_->training_losses(model_.network());
  const double mean =
      std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(losses_.size());
  const double squares = std::visit([](const auto& typed) { return typed.squared_length(); }, typed_);
  return {mean + 0.5 * settings_.recipe.l2 * squares, task_->measure(model_.network())};
}

Memory Run::Impl::memory() const {
  const std::size_t weights = model_.weights().nbytes();
  Memory memory;
  memory.data = task_->data_bytes();
  memory.model = 2 * weights;
  memory.optimizer = weights * (settings_.recipe.optimizer == tasks::Optimizer::kAdamW ? 2 : 1);
  if (settings_.average == Average::kTail) memory.optimizer += 8 * facts_.parameters;
  memory.order = feed_->kept_bytes();
  return memory;
}

State Run::Impl::state() {
  State state;
  state.set("kind", std::string("run"));
  state.set("settings", to_json(settings_).dump());
  state.set("data.fingerprint", static_cast<std::int64_t>(task_->fingerprint()));
  ordered_json records = ordered_json::array();
  for (const EpochRecord& record : records_) records.push_back(to_json(record, facts_.metric));
  state.set("records", records.dump());
  state.set("steps", static_cast<std::int64_t>(steps_));
  for (const auto& [name, part] :
       {std::pair{"seconds.training", seconds_.training}, std::pair{"seconds.observing", seconds_.observing},
        std::pair{"seconds.evaluating", seconds_.evaluating}})
    state.set(name, part);
  std::visit([&](const auto& typed) { typed.save(state); }, typed_);
  schedule_.save(state);
  average_.save(state);
  state.set_part(kSampler, feed_->state());
  return state;
}

std::string Run::Impl::load(const State& state) {
  const Settings stored = settings_of(state);
  const ordered_json there = to_json(stored);
  const ordered_json here = to_json(settings_);
  for (const auto& [name, value] : here.items())
    if (there.at(name) != value && !may_change(name))
      throw StateMismatch("Run::load", fmt::format("'{}' is {} in the checkpoint and {} here; go on with the "
                                                   "same settings, or start another run",
                                                   name, there.at(name).dump(), value.dump()));
  if (state.integer("data.fingerprint") != static_cast<std::int64_t>(task_->fingerprint()))
    throw StateMismatch("Run::load",
                        "the examples are not those that the checkpoint was trained on; put the same data "
                        "back, or start another run");
  std::vector<EpochRecord> records = parse_records(state.text("records"));
  std::string changes = feed_->load(state.part(kSampler));
  std::visit([&](auto& typed) { typed.load(state); }, typed_);
  schedule_.load(state);
  average_.load(state, facts_.parameters);
  records_ = std::move(records);
  steps_ = static_cast<std::uint64_t>(state.integer("steps"));
  if (!changes.empty() && !records_.empty() && !finished())
    steps_ = records_.size() * steps_per_epoch() - feed_->steps_left();
  seconds_ = {state.number("seconds.training"), state.number("seconds.observing"),
              state.number("seconds.evaluating"), 0.0};  // an order is made between epochs, not within
  return changes;
}

std::shared_ptr<const Task> open(const Settings& settings) {
  check_settings(settings);
  at::set_num_threads(static_cast<int>(settings.threads));
  return tasks::open_task(settings.task, settings.source, settings.sizes);
}

TaskFacts facts_of(const Task& task) {
  const tasks::Metric metric = task.metric();
  return {task.examples(),
          static_cast<std::size_t>(task.validation().size()),
          static_cast<std::size_t>(task.make_model(0).weights().numel()),
          metric.name,
          metric.larger_is_better,
          task.fingerprint()};
}

Settings settings_of(const State& state) {
  if (!state.contains("settings"))
    throw StateMismatch("checkpoint",
                        "this is a state of cdgrab, but not of a run; name the folder that "
                        "`cdgrab train --out` wrote");
  return parse_settings(state.text("settings"));
}

Run::Run(std::shared_ptr<const Task> task, const Settings& settings)
    : impl_(std::make_unique<Impl>(std::move(task), settings, nullptr)) {}
Run::Run(std::shared_ptr<const Task> task, const Settings& settings, Communicator& communicator)
    : impl_(std::make_unique<Impl>(std::move(task), settings, &communicator)) {}

Run::~Run() = default;
Run::Run(Run&&) noexcept = default;
Run& Run::operator=(Run&&) noexcept = default;

bool Run::step() { return impl_->step(); }

const EpochRecord& Run::epoch() {
  while (!step()) {
  }
  return records().back();
}

bool Run::finished() const { return impl_->finished(); }
const Settings& Run::settings() const { return impl_->settings_; }
const TaskFacts& Run::facts() const { return impl_->facts_; }
const std::vector<EpochRecord>& Run::records() const { return impl_->records_; }
std::uint64_t Run::steps_done() const { return impl_->steps_; }
std::uint64_t Run::steps_per_epoch() const { return impl_->steps_per_epoch(); }
std::uint64_t Run::weights_hash() const { return impl_->weights_hash(); }
Memory Run::memory() const { return impl_->memory(); }
State Run::state() const { return impl_->state(); }
std::string Run::load(const State& state) { return impl_->load(state); }
std::vector<Shape> Run::gradient_shapes() const {
  return training::gradient_shapes(*impl_->task_, impl_->model_);
}
std::vector<double> Run::weights() const { return impl_->weights(); }
std::vector<double> Run::average() const {
  std::vector<double> mean(impl_->average_.count() > 0 ? impl_->facts_.parameters : 0);
  if (!mean.empty()) impl_->average_.mean<double>(mean);
  return mean;
}

}  // namespace cdgrab::training
