// SPDX-License-Identifier: Apache-2.0
// The parallel herding experiment of the CD-GraB paper: every worker visits its own share of fixed vectors,
// and at each time the next vector of every worker enters the sum.
#include "cdgrab/herding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/npy.hpp"
#include "cdgrab/self_communicator.hpp"
#include "cdgrab/stopwatch.hpp"
#include "generate.hpp"
#include "interrupt.hpp"
#include "simulate/simulate.hpp"
#include "terminal.hpp"

namespace cdgrab::cli {
namespace {

constexpr std::size_t kExamples = 1'000'000;
constexpr std::size_t kBatch = 16;        // vectors of a worker in a step, where bytes are counted
constexpr std::size_t kAtOnce = 1 << 16;  // vectors of all workers; the orders do not depend on it

std::vector<double> mean_of(const Matrix<float>& rows) {
  std::vector<double> mean(rows.dim);
  for (std::size_t i = 0; i < rows.values.size(); ++i)
    mean[i % rows.dim] += static_cast<double>(rows.values[i]);
  for (double& m : mean) m /= static_cast<double>(std::max<std::size_t>(rows.rows, 1));
  return mean;
}

/// Of the sequence in which at each time all workers' next vectors enter together: how far their sum strays
/// from as many means.
HerdingBound parallel_bound(const Matrix<float>& rows, std::span<const double> mean,
                            const DistributedSampler& sampler) {
  std::vector<std::vector<Index>> orders;
  std::size_t longest = 0;
  for (std::size_t w = 0; w < sampler.workers(); ++w) {
    orders.push_back(sampler.order(w));
    longest = std::max(longest, orders.back().size());
  }
  HerdingBound bound;
  std::vector<double> sum(rows.dim);
  for (std::size_t t = 0; t < longest; ++t) {
    for (const std::vector<Index>& order : orders) {
      if (t >= order.size()) continue;
      const float* row = rows.values.data() + order[t] * rows.dim;
      for (std::size_t k = 0; k < rows.dim; ++k) sum[k] += static_cast<double>(row[k]) - mean[k];
    }
    double squares = 0.0;
    for (const double s : sum) {
      squares += s * s;
      bound.linf = std::max(bound.linf, std::abs(s));
    }
    bound.l2 = std::max(bound.l2, std::sqrt(squares));
  }
  return bound;
}

/// One epoch of every worker.
void visit_all(const Matrix<float>& rows, DistributedSampler& sampler) {
  const std::size_t batch = std::max<std::size_t>(2, kAtOnce / sampler.workers());
  std::vector<float> block;
  for (bool more = true; more;) {
    check_interrupt();
    more = false;
    for (std::size_t w = 0; w < sampler.workers(); ++w) {
      const std::vector<Index> examples = sampler.next(w, batch);
      more = more || !examples.empty();
      block.resize(examples.size() * rows.dim);
      for (std::size_t i = 0; i < examples.size(); ++i)
        std::copy_n(rows.values.data() + examples[i] * rows.dim, rows.dim, block.data() + i * rows.dim);
      if (sampler.spec().balances()) sampler.deposit(w, Rows<float>{block.data(), examples.size(), rows.dim});
    }
    sampler.step();
  }
  sampler.end_epoch();
}

SimulatedLane run_lane(const SimulateOptions& options, const Matrix<float>& rows,
                       std::span<const double> mean, std::uint64_t seed, std::size_t workers,
                       const Spec& spec, Progress& progress) {
  SimulatedLane lane{workers, print_spec(spec), {}, {}, 0.0};
  const Stopwatch watch(&lane.seconds);
  SelfCommunicator alone;
  DistributedOptions sampler_options;
  sampler_options.seed = seed;
  DistributedSampler sampler(Shares::strided(rows.rows, workers), spec, alone, sampler_options);
  for (std::size_t round = 0; round <= options.rounds; ++round) {
    progress.show(fmt::format("{} workers  {}  round {}/{}", workers, lane.order, round, options.rounds));
    if (round > 0) visit_all(rows, sampler);
    const HerdingBound bound = parallel_bound(rows, mean, sampler);
    lane.rounds.push_back({bound.linf, bound.l2});
  }
  lane.bytes = count_bytes({spec, kBatch, rows.dim, false, {}}, workers);
  return lane;
}

std::vector<Spec> orders_of(const SimulateOptions& options) {
  std::vector<Spec> specs = parse_spec_list(options.orders);
  for (const Spec& spec : specs) {
    if (!spec.distributed())
      throw UserError("--orders", fmt::format("`{}` is an order of one worker; allowed: cd-pair, id-pair and "
                                              "d-rr, and `cdgrab herd` for it",
                                              print_spec(spec)));
    if (spec.unit > 1)
      throw UserError("--orders",
                      fmt::format("`{}`: units are made of a task's steps; leave unit= out, or name "
                                  "a --task",
                                  print_spec(spec)));
  }
  return specs;
}

}  // namespace

SimulateResult simulate_herding(const SimulateOptions& options, const LaneDone& done) {
  options.flags->require_only({"examples", "seed"}, "training; name a --task");
  const training::Settings settings = options.flags->settings();
  const std::vector<Spec> specs = orders_of(options);
  SimulateResult result;
  result.examples = settings.source.examples > 0 ? settings.source.examples : kExamples;
  result.dim = options.dim;
  result.batch = kBatch;
  result.seed = settings.seed;
  result.split = "even";
  result.first = "l-infinity";
  result.second = "l2";
  result.workers = parse_worker_list(options.workers.empty() ? "5,10,20,50,100" : options.workers);
  for (const Spec& spec : specs) result.orders.push_back(print_spec(spec));

  Progress progress(options.quiet);
  const Matrix<float> rows = generate_vectors(result.examples, result.dim, result.seed, progress);
  const std::vector<double> mean = mean_of(rows);
  for (const std::size_t workers : result.workers) {
    for (const Spec& spec : specs) {
      result.lanes.push_back(run_lane(options, rows, mean, result.seed, workers, spec, progress));
      progress.clear();
      done(result);
    }
  }
  return result;
}

}  // namespace cdgrab::cli
