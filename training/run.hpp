// SPDX-License-Identifier: Apache-2.0
// One model trained in one order from one seed. Knows no torch: what plans and prints need not include it.
//
//   auto task = training::open(settings);          // once for all runs on these examples
//   training::Run run(task, settings);
//   while (!run.finished()) if (run.step()) use(run.records().back());
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cdgrab/communicator.hpp"
#include "cdgrab/state.hpp"
#include "training/record.hpp"
#include "training/settings.hpp"

namespace cdgrab::training {

/// Bytes, as far as they can be told before the first step.
struct Memory {
  std::size_t data = 0;       ///< examples
  std::size_t model = 0;      ///< weights and their gradient
  std::size_t optimizer = 0;  ///< momentum and what else it keeps, and the average
  std::size_t order = 0;      ///< what the order keeps between steps
};

/// What a task is once its examples are there.
struct TaskFacts {
  std::size_t examples = 0;
  std::size_t validation_examples = 0;
  std::size_t parameters = 0;
  std::string metric;
  bool larger_is_better = false;
  std::uint64_t fingerprint = 0;  ///< of the examples
};

/// Reads or generates the examples that `settings` names. Checks the settings against them.
std::shared_ptr<const tasks::Task> open(const Settings& settings);
TaskFacts facts_of(const tasks::Task& task);

/// Runs with the same task, seed and sizes begin with the same weights and, unless the order draws with
/// replacement or is given, with the same first order. Several may be under way by turns, in one thread.
///
/// Orders of many workers run on all ranks of the communicator together: each rank makes such a run, with the
/// same settings, and calls step(), epoch(), state() and load() in the same sequence as the others. The
/// weights are the same on all, which is checked after every epoch (CommunicationError).
class Run {
 public:
  /// Throws UserError for settings that do not fit the task, or orders of one worker on several ranks.
  Run(std::shared_ptr<const tasks::Task> task, const Settings& settings);
  /// The communicator must outlive it. Collective with `overlap`.
  Run(std::shared_ptr<const tasks::Task> task, const Settings& settings, Communicator& communicator);
  ~Run();
  Run(Run&&) noexcept;
  Run& operator=(Run&&) noexcept;

  /// One step of the optimizer. True if an epoch ended with it: then records() has one more. The first call
  /// only evaluates the initial weights, record 0.
  bool step();
  /// Steps until an epoch has ended; what records() then ends with.
  const EpochRecord& epoch();
  /// All epochs are done, or a loss was not finite.
  [[nodiscard]] bool finished() const;

  /// Those given, with the number of workers filled in.
  [[nodiscard]] const Settings& settings() const;
  [[nodiscard]] const TaskFacts& facts() const;
  [[nodiscard]] const std::vector<EpochRecord>& records() const;
  [[nodiscard]] std::uint64_t steps_done() const;
  [[nodiscard]] std::uint64_t steps_per_epoch() const;
  /// Of their bytes.
  [[nodiscard]] std::uint64_t weights_hash() const;
  [[nodiscard]] Memory memory() const;

  /// Everything, between any two steps; load() takes it into a run made of the same task and settings, on any
  /// number of ranks, which then goes on as if it had never stopped. With another number of workers it goes
  /// on too: what is left of the epoch is dealt anew, steps_done() counts the steps of so many workers, and
  /// what load() returns says so for a log. Throws StateMismatch for any other.
  [[nodiscard]] State state() const;
  std::string load(const State& state);

  /// Of the tensors that make up a gradient: what sketch=kron asks for.
  [[nodiscard]] std::vector<Shape> gradient_shapes() const;
  /// Copies, as float64; the tail average is empty before it has begun.
  [[nodiscard]] std::vector<double> weights() const;
  [[nodiscard]] std::vector<double> average() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The settings of the run that a state is of.
Settings settings_of(const State& state);

}  // namespace cdgrab::training
