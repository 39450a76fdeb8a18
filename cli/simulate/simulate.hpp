// SPDX-License-Identifier: Apache-2.0
// What `cdgrab simulate` was asked and what came out: shared by what makes it and its ways of showing it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "settings_flags.hpp"

namespace cdgrab::cli {

struct SimulateOptions {
  std::shared_ptr<const SettingsFlags> flags;
  std::string orders = "cd-pair,id-pair,d-rr";
  std::string workers;  ///< empty: 5,10,20,50,100, or with a task 4,16,64
  std::size_t rounds = 15;
  std::size_t dim = 16;
  std::string report;
  bool json = false;
  bool quiet = false;
  std::vector<std::string> words;  ///< of the command line
  std::string command_line;        ///< the same, to be typed again
};

/// What a rank sends in a step if each worker is one: bytes, in the mean.
struct StepBytes {
  double averaging = 0.0;  ///< of gradients: what data-parallel training sends anyway
  double heads = 0.0;      ///< what arrived, and where
  double vectors = 0.0;    ///< differences of pairs
  double sums = 0.0;       ///< of their products

  [[nodiscard]] double added() const { return heads + vectors + sums; }
};

/// Two figures after each round: the bound in l-infinity and l2, or the loss and the metric.
struct SimulatedRound {
  double first = 0.0;
  double second = 0.0;
};

/// One order of so many workers.
struct SimulatedLane {
  std::size_t workers = 0;
  std::string order;
  std::vector<SimulatedRound> rounds;  ///< [0]: before the first
  StepBytes bytes;
  double seconds = 0.0;
};

struct SimulateResult {
  std::string task;  ///< empty: herding of fixed vectors
  std::size_t examples = 0;
  std::size_t dim = 0;    ///< numbers in a vector, or parameters
  std::size_t batch = 0;  ///< vectors of a worker in a step, or examples of all together
  std::uint64_t seed = 0;
  std::string split;
  std::string first;   ///< names of the figures
  std::string second;  ///< the same
  std::vector<std::size_t> workers;
  std::vector<std::string> orders;
  std::vector<SimulatedLane> lanes;  ///< workers outer, orders inner
};

/// Called when a lane is finished.
using LaneDone = std::function<void(const SimulateResult& so_far)>;

/// Throws UserError.
std::vector<std::size_t> parse_worker_list(const std::string& text);

/// Herding of fixed vectors.
SimulateResult simulate_herding(const SimulateOptions& options, const LaneDone& done);
/// Training of a task: defined twice, as run_train() is. In cdgrab it hands over and does not return.
SimulateResult simulate_training(const SimulateOptions& options, const LaneDone& done);

/// A step of one worker of many.
struct StepShape {
  Spec spec;
  std::size_t batch = 0;
  std::size_t dim = 0;
  bool averages = false;      ///< gradients too
  std::vector<Shape> shapes;  ///< of the tensors that make up a vector; for sketch=kron only
};

/// Counted with as many ranks that are threads, of 256 at most; where the vectors of all would not fit in
/// memory, with shorter ones. Beyond, bytes are taken to grow as they do up to there.
StepBytes count_bytes(const StepShape& step, std::size_t workers);

// ---- showing it

void print_simulate_lane(const SimulateResult& result);  ///< JSON lines of the last lane
void print_simulate_table(const SimulateResult& result);
void print_simulate_summary(const SimulateOptions& options, const SimulateResult& result);  ///< JSON
std::string simulate_page(const SimulateOptions& options, const SimulateResult& result);

}  // namespace cdgrab::cli
