// SPDX-License-Identifier: Apache-2.0
// Where the gradients of a run come from: the order of the examples and what it observes, for one worker or
// for many. Knows no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cdgrab/communicator.hpp"
#include "cdgrab/sampler.hpp"
#include "training/settings.hpp"

namespace cdgrab::tasks {
class Model;
}

namespace cdgrab::training {

class Feed {
 public:
  Feed() = default;
  virtual ~Feed() = default;
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  /// Forward and backward on the next examples, observed if the order looks at gradients: the gradient of the
  /// step is then the model's. False if a loss is not finite. Collective, and the same on all ranks.
  virtual bool compute_gradient() = 0;
  /// Makes the next epoch's order. `losses`: of all examples now. Collective.
  virtual void end_epoch(std::span<const double> losses) = 0;

  [[nodiscard]] virtual std::uint64_t steps_per_epoch() const = 0;
  /// Of the epoch under way.
  [[nodiscard]] virtual std::uint64_t steps_left() const = 0;
  /// Seconds spent on the order inside compute_gradient(), since construction.
  [[nodiscard]] virtual double observing() const = 0;
  /// Of the epoch that ended last, if it was asked for.
  [[nodiscard]] virtual std::optional<HerdingReport> herding() const { return std::nullopt; }
  /// Bytes that are kept from step to step.
  [[nodiscard]] virtual std::size_t kept_bytes() const = 0;

  /// Collective, and the same on all ranks.
  [[nodiscard]] virtual State state() = 0;
  /// Collective. What changed, for a log, if the state is of other workers; else empty.
  virtual std::string load(const State& state) = 0;
};

/// An order of one worker: a Sampler's.
std::unique_ptr<Feed> feed_one_worker(const tasks::Task& task, const tasks::Model& model, const Order& order,
                                      const Settings& settings);
/// One of many: a DistributedSampler's. Each worker computes the gradient of `batch` examples of its own, and
/// the step's is their mean, weighted by the examples: its bits depend on the workers and not on the ranks.
/// With `overlap` this is collective. The communicator must outlive it.
std::unique_ptr<Feed> feed_many_workers(const tasks::Task& task, const tasks::Model& model,
                                        const Order& order, const Settings& settings,
                                        Communicator& communicator);

/// Of the tensors that make up a gradient, in the order in which they are met: what sketch=kron asks for.
std::vector<Shape> gradient_shapes(const tasks::Task& task, const tasks::Model& model);

}  // namespace cdgrab::training
