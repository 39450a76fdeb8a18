// SPDX-License-Identifier: Apache-2.0
// cdgrab train: one run, its figures after each epoch, and checkpoints from which it goes on.
#include "train.hpp"

#include <fmt/format.h>

#include <algorithm>
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
#include "launcher.hpp"
#include "terminal.hpp"
#include "training/folder.hpp"
#include "training/ranks.hpp"
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
constexpr std::chrono::duration<double> kBetweenLooks{0.1};

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
  fmt::print("{:<14}{} examples ({} to validate), {} parameters, judged by {}\n", "task", facts.examples,
             facts.validation_examples, facts.parameters, facts.metric);
  fmt::print("{:<14}{} epochs of {} steps\n", "steps", run.settings().recipe.epochs, run.steps_per_epoch());
  fmt::print("{:<14}data {}, weights and gradient {}, optimizer {}, order {}; activations come on top\n",
             "memory", megabytes(memory.data), megabytes(memory.model), megabytes(memory.optimizer),
             megabytes(memory.order));
  fmt::print("{:<14}{}\n", "writes", options.out.empty() ? "nothing; --out names a folder" : options.out);
  const ordered_json settings = to_json(run.settings());
  for (const auto& [name, value] : settings.items())
    fmt::print("{:<14}{}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
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

/// What the ranks have to agree on, since one that stops or saves alone leaves the others waiting.
class Agreement {
 public:
  explicit Agreement(Communicator& communicator) : communicator_(communicator) {}

  /// Between any two steps: whether some rank was interrupted. Several ranks ask each other ten times a
  /// second or so, by the clock of rank 0.
  bool interrupted(std::uint64_t steps_done) {
    if (communicator_.ranks() == 1) return interrupt_requested != 0;
    if (steps_done < next_look_) return false;
    const double seconds = std::chrono::duration<double>(Clock::now() - looked_).count();
    const double fitting = static_cast<double>(interval_) * kBetweenLooks.count() / std::max(seconds, 1e-6);
    looked_ = Clock::now();
    interval_ = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(fitting), 1, 2 * interval_);
    const std::uint64_t mine = 2 * interval_ + (interrupt_requested != 0 ? 1 : 0);
    const std::vector<std::uint64_t> all = training::words_of_all(communicator_, mine);
    interval_ = all.front() / 2;
    next_look_ = steps_done + interval_;
    return std::any_of(all.begin(), all.end(), [](std::uint64_t word) { return word % 2 == 1; });
  }

  /// What rank 0 says.
  bool of_first(bool mine) { return training::value_of_first(communicator_, mine); }

 private:
  Communicator& communicator_;
  std::uint64_t interval_ = 1;  ///< steps
  std::uint64_t next_look_ = 0;
  Clock::time_point looked_ = Clock::now();
};

/// Why a command that has done its work fails.
struct Failure {
  std::optional<Interrupted> interrupted;
  std::string diverged;
};

/// A run, the folder it writes to if there is one, and what is said meanwhile: by rank 0 alone.
class Session {
 public:
  Session(const TrainOptions& options, Communicator& communicator, Run run, std::optional<RunFolder> folder)
      : options_(options),
        communicator_(communicator),
        agreement_(communicator),
        run_(std::move(run)),
        folder_(std::move(folder)),
        progress_(options.quiet || !leads()),
        first_step_(run_.steps_done()) {}

  /// Collective. The others' failures are those of rank 0.
  Failure run() {
    announce();
    save();
    if (folder_) folder_->rewrite(run_);
    if (leads() && !options_.json) table_.emplace(run_);
    while (!run_.finished()) {
      if (agreement_.interrupted(run_.steps_done())) return {stop(), ""};
      advance();
    }
    progress_.clear();
    save();
    return {std::nullopt, leads() ? finish() : ""};
  }

 private:
  [[nodiscard]] bool leads() const { return communicator_.rank() == 0; }
  [[nodiscard]] bool saves() const { return !options_.out.empty() || !options_.resume.empty(); }

  void announce() const {
    if (options_.quiet || !leads()) return;
    const Settings& s = run_.settings();
    say(fmt::format(
        "{}: {} examples ({}), {} parameters; order: {}; epochs: {}; batch: {}; lr: {} ({}); seed: {}",
        s.task, run_.facts().examples, s.source.data.empty() ? "generated" : s.source.data,
        run_.facts().parameters, s.order, s.recipe.epochs, s.recipe.batch, s.recipe.lr,
        name_of(s.recipe.schedule), s.seed));
    if (s.workers > 1 || communicator_.ranks() > 1)
      say(fmt::format("{} workers on {} {}; split: {}{}", s.workers, communicator_.ranks(),
                      communicator_.ranks() == 1 ? "rank" : "ranks", s.split, s.overlap ? "; overlap" : ""));
    if (run_.steps_done() > 0)
      say(fmt::format("going on after step {} of {}", run_.steps_done(), steps_in_all()));
  }

  void advance() {
    const bool ended = run_.step();
    if (ended && leads()) report(run_.records().back());
    const bool due = options_.checkpoint_every > 0
                         ? run_.steps_done() % options_.checkpoint_every == 0
                         : ended && agreement_.of_first(Clock::now() - saved_ >= kBetweenCheckpoints);
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

  /// Of all ranks together, written by one.
  void save() {
    saved_ = Clock::now();
    if (!saves()) return;
    const State state = run_.state();
    if (folder_) folder_->save(state);
  }

  Interrupted stop() {
    progress_.clear();
    if (!saves()) return {"nothing was saved, since there is no --out"};
    save();
    return {fmt::format("saved after step {} of {}; go on with `cdgrab train --resume {}`", run_.steps_done(),
                        steps_in_all(), options_.out.empty() ? options_.resume : options_.out)};
  }

  void show_progress() {
    const auto done = static_cast<double>(run_.steps_done());
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    const double rate = (done - static_cast<double>(first_step_)) / seconds;
    if (rate <= 0.0) return;
    const double left = (static_cast<double>(steps_in_all()) - done) / rate;
    const Settings& s = run_.settings();
    progress_.show(fmt::format("epoch {}/{}  {:.0f}%  {:.0f} examples/s  {} left", run_.records().size(),
                               s.recipe.epochs, 100.0 * done / static_cast<double>(steps_in_all()),
                               rate * static_cast<double>(s.recipe.batch * s.workers),
                               format_duration(left)));
  }

  /// What is wrong with the end, if something is.
  std::string finish() {
    const EpochRecord& last = run_.records().back();
    if (options_.json)
      print_line(summary_of(run_, options_));
    else
      fmt::print("\nweights {:016x}\n", run_.weights_hash());
    if (folder_ && !options_.quiet)
      say(fmt::format("wrote {} and {}", folder_->metrics().string(), folder_->checkpoint().string()));
    if (!last.diverged) return "";
    return fmt::format("diverged in epoch {}: a loss is not finite; try an --lr below {}", last.epoch,
                       run_.settings().recipe.lr);
  }

  [[nodiscard]] std::uint64_t steps_in_all() const {
    return run_.steps_per_epoch() * run_.settings().recipe.epochs;
  }

  const TrainOptions& options_;
  Communicator& communicator_;
  Agreement agreement_;
  Run run_;
  std::optional<RunFolder> folder_;
  Progress progress_;
  std::optional<Table> table_;
  Clock::time_point began_ = Clock::now();
  Clock::time_point saved_ = Clock::now();
  std::uint64_t first_step_;
};

struct Opened {
  Run run;
  std::optional<RunFolder> folder;
};

/// Read by rank 0: the others need not see the folder.
Opened resume(const TrainOptions& options, Communicator& communicator) {
  std::optional<RunFolder> folder;
  std::vector<std::byte> bytes;
  if (communicator.rank() == 0) {
    folder = RunFolder::reopen(options.resume);
    bytes = encode_state(folder->load());
  }
  const State state = decode_state(training::bytes_of_first(communicator, bytes), "--resume");
  const Settings settings = options.flags->resumed(training::settings_of(state));
  Run run(training::open(settings), settings, communicator);
  const std::string changes = run.load(state);
  if (!changes.empty() && communicator.rank() == 0) say(changes);
  return {std::move(run), std::move(folder)};
}

Run start_run(const TrainOptions& options, Communicator& communicator) {
  const Settings settings = options.flags->settings();
  return {training::open(settings), settings, communicator};
}

Opened start(const TrainOptions& options, Communicator& communicator) {
  std::optional<RunFolder> folder;
  if (!options.out.empty() && communicator.rank() == 0) folder = RunFolder::create(options.out);
  return {start_run(options, communicator), std::move(folder)};
}

/// Prints the plan, or trains.
Failure work(const TrainOptions& options, Communicator& communicator) {
  if (options.dry_run) {
    const Run run =
        options.resume.empty() ? start_run(options, communicator) : resume(options, communicator).run;
    if (communicator.rank() == 0) print_plan(run, options);
    return {};
  }
  Opened opened = options.resume.empty() ? start(options, communicator) : resume(options, communicator);
  return Session(options, communicator, std::move(opened.run), std::move(opened.folder)).run();
}

}  // namespace

void run_train(const TrainOptions& options) {
  std::unique_ptr<Communicator> communicator = join_ranks(std::chrono::seconds(options.timeout));
  const bool leads = communicator->rank() == 0;
  const Failure failure = work(options, *communicator);
  communicator.reset();  // all part in peace, before anybody fails
  if (!leads) return;
  if (failure.interrupted) throw Interrupted(*failure.interrupted);
  if (!failure.diverged.empty()) throw std::runtime_error(failure.diverged);
}

}  // namespace cdgrab::cli
