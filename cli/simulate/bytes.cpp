// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <span>

#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/thread_communicator.hpp"
#include "simulate/simulate.hpp"

namespace cdgrab::cli {
namespace {

constexpr std::size_t kSteps = 2;  // so that a carry of the first meets its partner in the second

std::vector<float> zeros(std::size_t size) { return std::vector<float>(size, 0.0F); }

/// The mean over the steps, and over the ranks: which rank holds a short vector, and is sent others', is the
/// sampler's choice.
double per_step(std::span<const double> of_ranks) {
  return std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0) /
         static_cast<double>(of_ranks.size() * kSteps);
}

double sent(const Communicator& communicator, Verb verb) {
  return static_cast<double>(communicator.traffic(verb).sent);
}

/// What averaging gradients of this length sends: rounds of a sampler that has nothing else to do.
double count_averaging(std::size_t workers, std::size_t dim) {
  std::vector<double> of_ranks(workers);
  run_on_threads(workers, [&](Communicator& communicator) {
    DistributedSampler sampler(Shares::strided(0, workers), parse_spec("d-rr"), communicator);
    const std::vector<float> gradient = zeros(dim);
    std::vector<float> mean(dim);
    const std::span<const float> row = gradient;
    const double weight = 1.0;
    for (std::size_t step = 0; step < kSteps; ++step)
      sampler.average<float>(std::span(&row, 1), std::span(&weight, 1), mean);
    of_ranks[communicator.rank()] =
        sent(communicator, Verb::kAllToAll) + sent(communicator, Verb::kAllGather);
  });
  return per_step(of_ranks);
}

StepBytes count_steps(const StepShape& step, std::size_t workers, std::size_t dim) {
  const Spec& spec = step.spec;
  const std::size_t batch = step.batch;
  DistributedOptions options;
  options.shapes = step.shapes;
  std::vector<double> heads(workers);
  std::vector<double> vectors(workers);
  std::vector<double> sums(workers);
  const bool by_step = spec.unit > 1;
  const std::vector<float> rows = zeros((by_step ? 1 : batch) * dim);
  run_on_threads(workers, [&](Communicator& communicator) {
    DistributedSampler sampler(Shares::strided(kSteps * batch * workers, workers), spec, communicator,
                               options);
    std::vector<float> mean(by_step ? dim : 0);
    const std::span<const float> row(rows.data(), dim);
    const double weight = 1.0;
    for (std::size_t k = 0; k < kSteps; ++k) {
      static_cast<void>(sampler.next(communicator.rank(), batch));
      if (by_step) {
        sampler.average<float>(std::span(&row, 1), std::span(&weight, 1), mean);
        continue;
      }
      sampler.deposit(communicator.rank(), Rows<float>{rows.data(), batch, dim});
      sampler.step();
    }
    heads[communicator.rank()] = sent(communicator, Verb::kAllGather);
    vectors[communicator.rank()] = sent(communicator, Verb::kAllToAll);
    sums[communicator.rank()] = sent(communicator, Verb::kSum);
  });
  return {0.0, per_step(heads), per_step(vectors), per_step(sums)};
}

StepBytes count(const StepShape& step, std::size_t workers, std::size_t dim) {
  StepBytes bytes;
  if (step.averages) bytes.averaging = count_averaging(workers, dim);
  if (!step.spec.balances()) return bytes;
  StepBytes steps = count_steps(step, workers, dim);
  if (step.spec.unit > 1) {  // averaged and balanced in one: what is added is the rest
    const double both = steps.heads + steps.vectors;
    steps.vectors = 0.0;
    steps.heads = std::max(0.0, both - bytes.averaging);
  }
  steps.averaging = bytes.averaging;
  return steps;
}

/// What counting gives at `one` and at `two`, taken to grow on as it does between them.
StepBytes grown(const StepBytes& one, const StepBytes& two, double times) {
  const auto part = [&](double StepBytes::*p) { return one.*p + times * (two.*p - one.*p); };
  return {part(&StepBytes::averaging), part(&StepBytes::heads), part(&StepBytes::vectors),
          part(&StepBytes::sums)};
}

StepBytes count_workers(const StepShape& step, std::size_t workers) {
  constexpr std::size_t kFits = std::size_t{64} << 20;  // numbers
  constexpr std::size_t kShort = 512;                   // numbers of a slice
  if (!step.shapes.empty() || workers * step.batch * step.dim <= kFits) return count(step, workers, step.dim);
  const StepBytes one = count(step, workers, kShort * workers);
  const StepBytes two = count(step, workers, 2 * kShort * workers);
  return grown(one, two, static_cast<double>(step.dim) / static_cast<double>(kShort * workers) - 1.0);
}

}  // namespace

StepBytes count_bytes(const StepShape& step, std::size_t workers) {
  constexpr std::size_t kThreads = 128;
  if (workers <= 2 * kThreads) return count_workers(step, workers);
  const StepBytes one = count_workers(step, kThreads);
  const StepBytes two = count_workers(step, 2 * kThreads);
  return grown(one, two, static_cast<double>(workers) / static_cast<double>(kThreads) - 1.0);
}

}  // namespace cdgrab::cli
