// SPDX-License-Identifier: Apache-2.0
// cdgrab train: one run, its figures after each epoch, and checkpoints from which it goes on.
#include "train.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cdgrab/version.hpp"
#include "format.hpp"
#include "interrupt.hpp"
#include "terminal.hpp"
#include "training/folder.hpp"
#include "training/run.hpp"

namespace cdgrab::cli {
namespace {

using nlohmann::ordered_json;
using training::EpochRecord;
using training::Run;
using training::RunFolder;
using training::Settings;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kBetweenCheckpoints{10};

/// Paths need not be UTF-8; JSON must be.
void print_line(const ordered_json& line) {
  fmt::print("{}\n", line.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  std::fflush(stdout);
}

class Table {
 public:
  explicit Table(const Run& run) : averages_(run.settings().average == training::Average::kTail) {
    fmt::print("{:>5} {:>13} {:>15}", "epoch", "train loss", run.facts().metric);
    if (averages_) fmt::print(" {:>13} {:>15}", "tail loss", "tail " + run.facts().metric);
    fmt::print(" {:>10} {:>9} {:>10}\n", "lr", "seconds", "observing");
  }

  void add(const EpochRecord& record) const {
    fmt::print("{:>5} {:>13.8g} {:>15.6g}", record.epoch, record.last.loss, record.last.metric);
    if (averages_ && record.average)
      fmt::print(" {:>13.8g} {:>15.6g}", record.average->loss, record.average->metric);
    else if (averages_)
      fmt::print(" {:>13} {:>15}", "-", "-");
    fmt::print(" {:>10.4g} {:>9.2f} {:>10.2f}\n", record.lr,
               record.seconds.training + record.seconds.observing, record.seconds.observing);
    std::fflush(stdout);
  }

 private:
  bool averages_;
};

ordered_json plan_of(const Run& run, const TrainOptions& options) {
  const training::Memory memory = run.memory();
  return {{"event", "plan"},
          {"settings", to_json(run.settings())},
          {"examples", run.facts().examples},
          {"validation_examples", run.facts().validation_examples},
          {"parameters", run.facts().parameters},
          {"metric", run.facts().metric},
          {"steps_per_epoch", run.steps_per_epoch()},
          {"steps", run.steps_per_epoch() * run.settings().recipe.epochs},
          {"memory",
           {{"data", memory.data},
            {"model", memory.model},
            {"optimizer", memory.optimizer},
            {"order", memory.order}}},
          {"out", options.out}};
}

std::string megabytes(std::size_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

void print_plan(const Run& run, const TrainOptions& options) {
  if (options.json) return print_line(plan_of(run, options));
  const training::Memory memory = run.memory();
  const training::TaskFacts& facts = run.facts();
  fmt::print("{:<12}{} examples ({} to validate), {} parameters, judged by {}\n", "task", facts.examples,
             facts.validation_examples, facts.parameters, facts.metric);
  fmt::print("{:<12}{} epochs of {} steps\n", "steps", run.settings().recipe.epochs, run.steps_per_epoch());
  fmt::print("{:<12}data {}, weights and gradient {}, optimizer {}, order {}; activations come on top\n",
             "memory", megabytes(memory.data), megabytes(memory.model), megabytes(memory.optimizer),
             megabytes(memory.order));
  fmt::print("{:<12}{}\n", "writes", options.out.empty() ? "nothing; --out names a folder" : options.out);
  const ordered_json settings = to_json(run.settings());
  for (const auto& [name, value] : settings.items())
    fmt::print("{:<12}{}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
}

ordered_json summary_of(const Run& run, const TrainOptions& options) {
  training::Seconds total;
  for (const EpochRecord& record : run.records()) {
    total.training += record.seconds.training;
    total.observing += record.seconds.observing;
    total.evaluating += record.seconds.evaluating;
  }
  ordered_json out = {{"event", "summary"}, {"version", version()}, {"command", options.command_line}};
  out.update(to_json(run.records().back(), run.facts().metric));
  out["seconds"] = {
      {"training", total.training}, {"observing", total.observing}, {"evaluating", total.evaluating}};
  out["examples"] = run.facts().examples;
  out["parameters"] = run.facts().parameters;
  out["weights_hash"] = fmt::format("{:016x}", run.weights_hash());
  out["settings"] = to_json(run.settings());
  return out;
}

/// A run, the folder it writes to if there is one, and what is said meanwhile.
class Session {
 public:
  Session(const TrainOptions& options, Run run, std::optional<RunFolder> folder)
      : options_(options),
        run_(std::move(run)),
        folder_(std::move(folder)),
        progress_(options.quiet),
        first_step_(run_.steps_done()) {}

  void run() {
    announce();
    if (folder_) {
      folder_->save(run_);
      folder_->rewrite(run_);
    }
    if (!options_.json) table_.emplace(run_);
    while (!run_.finished()) advance();
    progress_.clear();
    save();
    finish();
  }

 private:
  void announce() const {
    if (options_.quiet) return;
    const Settings& s = run_.settings();
    say(fmt::format(
        "{}: {} examples ({}), {} parameters; order: {}; epochs: {}; batch: {}; lr: {} ({}); seed: {}",
        s.task, run_.facts().examples, s.source.data.empty() ? "generated" : s.source.data,
        run_.facts().parameters, s.order, s.recipe.epochs, s.recipe.batch, s.recipe.lr,
        name_of(s.recipe.schedule), s.seed));
    if (run_.steps_done() > 0)
      say(fmt::format("going on after step {} of {}", run_.steps_done(), steps_in_all()));
  }

  void advance() {
    if (interrupt_requested != 0) stop();
    const bool ended = run_.step();
    if (ended) report(run_.records().back());
    const bool due = options_.checkpoint_every > 0 ? run_.steps_done() % options_.checkpoint_every == 0
                                                   : ended && Clock::now() - saved_ >= kBetweenCheckpoints;
    if (due && !run_.finished()) save();
    show_progress();
  }

  void report(const EpochRecord& record) {
    progress_.clear();
    if (folder_) folder_->append(run_);
    if (table_) return table_->add(record);
    ordered_json line = {{"event", "epoch"}};
    line.update(to_json(record, run_.facts().metric));
    print_line(line);
  }

  void save() {
    if (folder_) folder_->save(run_);
    saved_ = Clock::now();
  }

  [[noreturn]] void stop() {
    progress_.clear();
    if (!folder_) throw Interrupted{"nothing was saved, since there is no --out"};
    save();
    throw Interrupted{fmt::format("saved after step {} of {}; go on with `cdgrab train --resume {}`",
                                  run_.steps_done(), steps_in_all(), folder_->path().string())};
  }

  void show_progress() {
    const auto done = static_cast<double>(run_.steps_done());
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    const double rate = (done - static_cast<double>(first_step_)) / seconds;
    if (rate <= 0.0) return;
    const double left = (static_cast<double>(steps_in_all()) - done) / rate;
    progress_.show(
        fmt::format("epoch {}/{}  {:.0f}%  {:.0f} examples/s  {} left", run_.records().size(),
                    run_.settings().recipe.epochs, 100.0 * done / static_cast<double>(steps_in_all()),
                    rate * static_cast<double>(run_.settings().recipe.batch), format_duration(left)));
  }

  void finish() {
    const EpochRecord& last = run_.records().back();
    if (options_.json)
      print_line(summary_of(run_, options_));
    else
      fmt::print("\nweights {:016x}\n", run_.weights_hash());
    if (folder_ && !options_.quiet)
      say(fmt::format("wrote {} and {}", folder_->metrics().string(), folder_->checkpoint().string()));
    if (last.diverged)
      throw std::runtime_error(fmt::format("diverged in epoch {}: a loss is not finite; try an --lr below {}",
                                           last.epoch, run_.settings().recipe.lr));
  }

  [[nodiscard]] std::uint64_t steps_in_all() const {
    return run_.steps_per_epoch() * run_.settings().recipe.epochs;
  }

  const TrainOptions& options_;
  Run run_;
  std::optional<RunFolder> folder_;
  Progress progress_;
  std::optional<Table> table_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point saved_ = Clock::now();
  std::uint64_t first_step_;
};

Session resume(const TrainOptions& options) {
  RunFolder folder = RunFolder::reopen(options.resume);
  const State state = folder.load();
  const Settings settings = training::settings_of(state);
  options.flags->require_same(settings);
  Run run(training::open(settings), settings);
  run.load(state);
  return {options, std::move(run), std::move(folder)};
}

Session start(const TrainOptions& options) {
  const Settings settings = options.flags->settings();
  std::optional<RunFolder> folder;
  if (!options.out.empty()) folder = RunFolder::create(options.out);
  return {options, Run(training::open(settings), settings), std::move(folder)};
}

}  // namespace

void run_train(const TrainOptions& options) {
  if (options.dry_run) {
    const Settings settings = options.flags->settings();
    return print_plan(Run(training::open(settings), settings), options);
  }
  Session session = options.resume.empty() ? start(options) : resume(options);
  session.run();
}

}  // namespace cdgrab::cli
