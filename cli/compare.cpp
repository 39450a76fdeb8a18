// SPDX-License-Identifier: Apache-2.0
// cdgrab compare: trains in every order x schedule x rate x seed, measures what ordering costs, and judges.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/version.hpp"
#include "compare/analysis.hpp"
#include "compare/page.hpp"
#include "compare/plan.hpp"
#include "compare/print.hpp"
#include "compare/store.hpp"
#include "compare/verdict.hpp"
#include "compare_options.hpp"
#include "format.hpp"
#include "interrupt.hpp"
#include "output_file.hpp"
#include "tasks/optimum.hpp"
#include "terminal.hpp"
#include "training/run.hpp"
#include "workers.hpp"

namespace cdgrab::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using training::EpochRecord;
using training::Run;
using TaskPointer = std::shared_ptr<const tasks::Task>;
using Clock = std::chrono::steady_clock;

constexpr const char* kCostMethod =
    "At least two epochs and half a second of each order, one order after the other and nothing beside, each "
    "in a "
    "process of its own; the fastest epoch counts. Evaluation is left out. Memory is the most that the "
    "process "
    "held during the steps of an epoch.";
constexpr std::size_t kMostTimedEpochs = 50;
constexpr double kLeastTimedSeconds = 0.5;

/// Of the runs that are only timed: what a step costs does not depend on the rate, and none may diverge.
constexpr double kVanishing = 1e-12;

EpochPoint point_of(const EpochRecord& record, training::Average average) {
  EpochPoint point;
  const bool tail = average == training::Average::kTail;
  if (!tail) {
    point.loss = record.last.loss;
    point.metric = record.last.metric;
  } else if (record.average) {
    point.loss = record.average->loss;
    point.metric = record.average->metric;
  }
  point.step_seconds = record.seconds.training;
  point.observe_seconds = record.seconds.observing - record.seconds.ordering;
  point.order_seconds = record.seconds.ordering;
  if (record.herding) point.bound = record.herding->used.linf;
  return point;
}

RunRecord run_record(const Training& training, training::Average average,
                     const std::vector<EpochRecord>& records) {
  RunRecord run;
  run.recipe = recipe_of(training, average);
  run.rate = training.rate;
  run.seed = training.seed;
  for (const EpochRecord& record : records) run.epochs.push_back(point_of(record, average));
  run.diverged = records.back().diverged || !std::isfinite(run.epochs.back().loss);
  return run;
}

/// In a child: a line per epoch, then one per average.
void train(const TaskPointer& task, const Plan& plan, const Training& training, const Send& send) {
  Run run(task, settings_of(plan, training));
  while (!run.finished()) {
    check_interrupt();
    if (run.step()) send("epoch");
  }
  for (const training::Average average : plan.averages)
    send(run_line(run_record(training, average, run.records())));
}

/// Kilobytes from /proc/self/status; 0 where there is no such thing.
double most_memory_held() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::strtod(line.c_str() + 6, nullptr) * 1024.0;
  }
  return 0.0;
}

void forget_most_memory_held() { std::ofstream("/proc/self/clear_refs") << "5"; }

/// Between two evaluations, which may hold more.
double memory_of_steps(Run& run) {
  forget_most_memory_held();
  for (std::uint64_t step = 0; step + 1 < run.steps_per_epoch(); ++step) {
    check_interrupt();
    run.step();
  }
  return most_memory_held();
}

/// In a child, alone: the fastest of some epochs.
Cost measure_cost(const TaskPointer& task, training::Settings settings) {
  settings.recipe.lr = kVanishing;
  settings.recipe.epochs = kMostTimedEpochs;
  settings.herding = false;
  Run run(task, settings);
  run.step();  // evaluates; trains nothing
  Cost cost;
  cost.peak_bytes = memory_of_steps(run);
  double all = 0.0;
  double fastest = std::numeric_limits<double>::infinity();
  while (!run.finished() && (run.records().size() < 3 || all < kLeastTimedSeconds)) {
    check_interrupt();
    if (!run.step()) continue;
    const training::Seconds& seconds = run.records().back().seconds;
    const double epoch = seconds.training + seconds.observing;
    all += epoch;
    if (epoch >= fastest) continue;
    fastest = epoch;
    cost.step_seconds = seconds.training;
    cost.observe_seconds = seconds.observing - seconds.ordering;
    cost.order_seconds = seconds.ordering;
  }
  return cost;
}

std::string describe(const Training& training) {
  return fmt::format("{}, {}, rate {}, seed {}", training.order, name_of(training.schedule),
                     format_short(training.rate), training.seed);
}

/// Runs what is missing and keeps it.
class Comparison {
 public:
  Comparison(const CompareOptions& options, Plan plan, TaskPointer task, fs::path folder)
      : options_(options),
        plan_(std::move(plan)),
        task_(std::move(task)),
        facts_(training::facts_of(*task_)),
        folder_(std::move(folder)),
        store_(folder_ / "runs.jsonl", stored_settings(plan_, facts_)),
        result_(result_of(plan_)),
        progress_(options.quiet) {
    result_.metric = facts_.metric;
    result_.command = options.command_line;
    result_.settings = shown_settings(plan_, facts_);
  }

  void run() {
    for (const Training& training : trainings_of(plan_)) {
      if (!reuse(training)) missing_.push_back(training);
    }
    announce();
    try {
      find_optimum();
      train_missing();
      measure_costs();
    } catch (const Interrupted&) {
      progress_.clear();
      const std::size_t all = trainings_of(plan_).size();
      throw Interrupted{fmt::format("{} of {} runs are in {}; the same command goes on with the others",
                                    all - missing_.size() + runs_done_, all, folder_.string())};
    }
    finish();
  }

 private:
  /// What makes two runs comparable: everything that they share, the examples and the version included.
  static Settings stored_settings(const Plan& plan, const training::TaskFacts& facts) {
    Settings settings = shared_settings(plan);
    settings.emplace_back("examples' fingerprint", fmt::format("{:016x}", facts.fingerprint));
    settings.emplace_back("version", version());
    return settings;
  }

  static bool is_kept(const RunStore& store, const Plan& plan, const Training& training) {
    return std::all_of(plan.averages.begin(), plan.averages.end(), [&](training::Average average) {
      return store.find(recipe_of(training, average), training.rate, training.seed) != nullptr;
    });
  }

  /// Sizes that the task does not have are left out.
  static Settings shown_settings(const Plan& plan, const training::TaskFacts& facts) {
    constexpr std::array<std::string_view, 7> kSizes = {"width",   "layers", "heads",     "length",
                                                        "horizon", "stride", "vocabulary"};
    Settings settings = {
        {"examples trained on", std::to_string(facts.examples)},
        {"examples validated on", std::to_string(facts.validation_examples)},
        {"parameters", std::to_string(facts.parameters)},
    };
    for (const auto& [name, value] : shared_settings(plan)) {
      const bool is_size = std::find(kSizes.begin(), kSizes.end(), name) != kSizes.end();
      if (name == "task" || name == "epochs" || (is_size && value == "0")) continue;
      settings.emplace_back(name, value.empty() ? "generated" : value);
    }
    return settings;
  }

  void take(RunRecord run) {
    if (options_.json) print_line(run_line(run));
    result_.runs.push_back(std::move(run));
  }

  bool reuse(const Training& training) {
    if (!is_kept(store_, plan_, training)) return false;
    for (const training::Average average : plan_.averages)
      take(*store_.find(recipe_of(training, average), training.rate, training.seed));
    return true;
  }

  void announce() const {
    if (options_.quiet) return;
    say(fmt::format(
        "{}: {} examples ({}), {} parameters; {} epochs of batches of {}; {} runs, {} at a time{}",
        result_.task, facts_.examples,
        plan_.shared.source.data.empty() ? "generated" : plan_.shared.source.data, facts_.parameters,
        plan_.shared.recipe.epochs, plan_.shared.recipe.batch, missing_.size(), jobs(),
        result_.runs.empty() ? "" : fmt::format("; the others are in {}", folder_.string())));
  }

  void find_optimum() {
    if (!store_.knows_optimum()) {
      run_in_processes(
          {{[&](const Send& send) {
              const auto optimum = tasks::optimum_of(*task_, plan_.shared.recipe.l2);
              send(optimum ? fmt::format("{}", optimum->loss) : "none");
            },
            [&](const std::string& line) {
              store_.keep_optimum(line == "none" ? std::nullopt : std::optional(std::stod(line)));
            }}},
          1, [&] { progress_.show("looking for the optimum"); });
      progress_.clear();
    }
    result_.optimum = store_.optimum();
  }

  void train_missing() {
    std::vector<Piece> pieces;
    began_ = Clock::now();
    for (const Training& training : missing_) {
      const auto arrived = std::make_shared<std::vector<RunRecord>>();
      pieces.push_back(
          {[this, training](const Send& send) { train(task_, plan_, training, send); },
           [this, training, arrived](const std::string& line) { take_line(training, *arrived, line); }});
    }
    run_in_processes(pieces, jobs(), [&] { show_progress(); });
    progress_.clear();
  }

  /// `arrived`: what the same training has sent before.
  void take_line(const Training& training, std::vector<RunRecord>& arrived, const std::string& line) {
    if (line == "epoch") {
      ++epochs_done_;
      return;
    }
    arrived.push_back(parse_run_line(line));
    if (arrived.size() < plan_.averages.size()) return;
    store_.add(arrived);
    ++runs_done_;
    if (!options_.quiet && !stderr_is_terminal()) say(finished_text(training, arrived.front()));
    for (RunRecord& run : arrived) take(std::move(run));
  }

  [[nodiscard]] std::string finished_text(const Training& training, const RunRecord& run) const {
    return fmt::format("run {} of {}: {}: {}", runs_done_, missing_.size(), describe(training),
                       run.diverged ? "diverged" : fmt::format("loss {:.8g}", run.epochs.back().loss));
  }

  void show_progress() {
    const double all = static_cast<double>(missing_.size() * (plan_.shared.recipe.epochs + 1));
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    const double rate = static_cast<double>(epochs_done_) / seconds;
    if (rate <= 0.0) return;
    progress_.show(fmt::format("{} of {} runs  {:.0f}%  {} epochs/s  {} left", runs_done_, missing_.size(),
                               100.0 * static_cast<double>(epochs_done_) / all, format_short(rate),
                               format_duration((all - static_cast<double>(epochs_done_)) / rate)));
  }

  void measure_costs() {
    std::vector<Piece> pieces;
    for (const std::string& order : plan_.orders) {
      training::Settings settings = plan_.shared;
      settings.order = order;
      pieces.push_back(
          {[this, settings](const Send& send) {
             const Cost cost = measure_cost(task_, settings);
             send(ordered_json{cost.step_seconds, cost.observe_seconds, cost.order_seconds, cost.peak_bytes}
                      .dump());
           },
           [this, order](const std::string& line) {
             const auto cost = ordered_json::parse(line);
             result_.costs.push_back({order, cost[0], cost[1], cost[2], cost[3]});
           }});
    }
    run_in_processes(pieces, 1, [&] { progress_.show("measuring what ordering costs"); });
    progress_.clear();
    result_.cost_method = kCostMethod;
  }

  void finish() {
    const std::vector<Entry> entries = analyse(result_);
    const Verdict verdict = judge(result_, entries);
    const fs::path page = folder_ / "report.html";
    write_text_file(page, compare_page(result_, entries, verdict), "--out");
    if (options_.json) {
      print_line(compare_summary_line(result_, entries, verdict));
    } else {
      fmt::print("{}", compare_tables(result_, entries, verdict));
      std::fflush(stdout);
    }
    if (!options_.quiet) say(fmt::format("wrote {}", page.string()));
  }

  static void print_line(const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  [[nodiscard]] std::size_t jobs() const {
    const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
    return options_.jobs > 0 ? options_.jobs : std::max<std::size_t>(1, cores / plan_.shared.threads);
  }

  const CompareOptions& options_;
  Plan plan_;
  TaskPointer task_;
  training::TaskFacts facts_;
  fs::path folder_;
  RunStore store_;
  CompareResult result_;
  Progress progress_;
  std::vector<Training> missing_;
  std::size_t runs_done_ = 0;
  std::size_t epochs_done_ = 0;
  Clock::time_point began_;
};

fs::path folder_of(const CompareOptions& options, const Plan& plan) {
  return options.out.empty() ? "compare-" + plan.shared.task : options.out;
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directory(folder, error);
  if (error || !fs::is_directory(folder, error)) {
    throw FileError("--out", fmt::format("cannot make the folder \"{}\": {}; name one whose parent exists",
                                         folder.string(), error ? error.message() : "it is a file"));
  }
}

/// One thread here: processes are made by forking, which takes along the caller's thread alone.
TaskPointer open_in_one_thread(training::Settings settings) {
  settings.threads = 1;
  return training::open(settings);
}

void print_plan(const CompareOptions& options, const Plan& plan, const TaskPointer& task) {
  const training::TaskFacts facts = training::facts_of(*task);
  const std::size_t runs = trainings_of(plan).size();
  const std::uint64_t steps = Run(task, settings_of(plan, trainings_of(plan).front())).steps_per_epoch();
  const std::string folder = folder_of(options, plan).string();
  if (options.json) {
    const ordered_json line = {{"event", "plan"},
                               {"task", plan.shared.task},
                               {"examples", facts.examples},
                               {"parameters", facts.parameters},
                               {"orders", plan.orders},
                               {"rates", plan.rates},
                               {"seeds", plan.seeds},
                               {"runs", runs},
                               {"steps_per_run", steps * plan.shared.recipe.epochs},
                               {"steps", runs * steps * plan.shared.recipe.epochs},
                               {"out", folder}};
    fmt::print("{}\n", line.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
    return;
  }
  fmt::print("{:<8}{}: {} examples ({} to validate), {} parameters\n", "task", plan.shared.task,
             facts.examples, facts.validation_examples, facts.parameters);
  fmt::print("{:<8}{} orders x {} schedules x {} rates x {} seeds = {}\n", "runs", plan.orders.size(),
             plan.schedules.size(), plan.rates.size(), plan.seeds.size(), runs);
  fmt::print("{:<8}{} epochs of {} in each run, {} in all\n", "steps", plan.shared.recipe.epochs, steps,
             runs * steps * plan.shared.recipe.epochs);
  fmt::print("{:<8}{}/report.html and {}/runs.jsonl\n", "writes", folder, folder);
}

}  // namespace

void run_compare(const CompareOptions& options) {
  Plan plan = make_plan(options);
  TaskPointer task = open_in_one_thread(plan.shared);
  // Before anything is trained: an order that this model or these examples do not allow.
  for (const std::string& order : plan.orders)
    Run(task, settings_of(plan, {order, plan.schedules.front(), plan.rates.front(), plan.seeds.front()}));
  if (options.dry_run) return print_plan(options, plan, task);
  const fs::path folder = folder_of(options, plan);
  make_folder(folder);
  require_writable(folder / "report.html", "--out");
  Comparison(options, std::move(plan), std::move(task), folder).run();
}

}  // namespace cdgrab::cli
