// SPDX-License-Identifier: Apache-2.0
// cdgrab simulate with a task: training with many workers in one process.
#include <fmt/format.h>

#include "cdgrab/error.hpp"
#include "cdgrab/stopwatch.hpp"
#include "interrupt.hpp"
#include "simulate/simulate.hpp"
#include "terminal.hpp"
#include "training/run.hpp"

namespace cdgrab::cli {
namespace {

using training::EpochRecord;
using training::Run;
using training::Settings;

constexpr std::size_t kBatch = 64;

/// The examples of a step are those of all workers together, so that numbers of workers compare.
std::size_t batch_of_each(std::size_t batch, std::size_t workers) {
  if (batch % workers == 0) return batch / workers;
  throw UserError(
      "--batch",
      fmt::format("{} examples in a step do not go evenly to {} workers; give a multiple, or other "
                  "--workers",
                  batch, workers));
}

SimulatedLane run_lane(const std::shared_ptr<const tasks::Task>& task, const Settings& settings,
                       Progress& progress) {
  Run run(task, settings);
  SimulatedLane lane{settings.workers, training::parse_order(settings.order).label, {}, {}, 0.0};
  const Stopwatch watch(&lane.seconds);
  while (!run.finished()) {
    check_interrupt();
    if (!run.step()) continue;
    const EpochRecord& record = run.records().back();
    lane.rounds.push_back({record.last.loss, record.last.metric});
    progress.show(fmt::format("{} workers  {}  epoch {}/{}", lane.workers, lane.order, record.epoch,
                              settings.recipe.epochs));
  }
  if (run.records().back().diverged)
    throw UserError("--lr",
                    fmt::format("{} workers in the order {} diverged in epoch {}; try an --lr below {}",
                                lane.workers, lane.order, run.records().back().epoch, settings.recipe.lr));
  StepShape step{parse_spec(lane.order), settings.recipe.batch, run.facts().parameters, true, {}};
  if (step.spec.sketch.kind == SketchKind::kKron) step.shapes = run.gradient_shapes();
  lane.bytes = count_bytes(step, settings.workers);
  return lane;
}

}  // namespace

SimulateResult simulate_training(const SimulateOptions& options, const LaneDone& done) {
  Settings settings = options.flags->unchecked();
  settings.recipe.epochs = options.rounds;
  const std::size_t batch = options.flags->given("batch") ? settings.recipe.batch : kBatch;
  SimulateResult result;
  result.workers = parse_worker_list(options.workers.empty() ? "4,16,64" : options.workers);
  const std::vector<training::Order> orders = training::parse_order_list(options.orders);
  for (const training::Order& order : orders) result.orders.push_back(order.label);
  std::vector<Settings> plan;
  for (const std::size_t workers : result.workers) {
    for (const training::Order& order : orders) {
      settings.order = order.label;
      settings.workers = workers;
      settings.recipe.batch = batch_of_each(batch, workers);
      training::check_settings(settings);
      if (!order.spec.distributed())
        throw UserError("--orders",
                        fmt::format("`{}` is an order of one worker; allowed: cd-pair, id-pair and "
                                    "d-rr, and `cdgrab compare` for it",
                                    order.label));
      plan.push_back(settings);
    }
  }
  const auto task = training::open(settings);
  const training::TaskFacts facts = training::facts_of(*task);
  result.task = settings.task;
  result.examples = facts.examples;
  result.dim = facts.parameters;
  result.batch = batch;
  result.seed = settings.seed;
  result.split = settings.split;
  result.first = "train loss";
  result.second = facts.metric;
  Progress progress(options.quiet);
  for (const Settings& lane : plan) {
    result.lanes.push_back(run_lane(task, lane, progress));
    progress.clear();
    done(result);
  }
  return result;
}

}  // namespace cdgrab::cli
