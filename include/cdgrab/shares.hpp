// SPDX-License-Identifier: Apache-2.0
// Who owns which example: M logical workers, each with a fixed share. Every order is of one worker's share,
// so what follows depends on M and never on how many ranks host the workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cdgrab/permutation.hpp"

namespace cdgrab {

class State;

/// Draws tell workers apart by 16 bits.
inline constexpr std::size_t kMaxWorkers = 65536;

/// The seed of everything random that concerns one worker alone: its first order, its reshuffling, its own
/// signs. That of worker 0 is the seed itself.
std::uint64_t worker_seed(std::uint64_t seed, std::size_t worker);

class Shares {
 public:
  /// Worker i owns i, i+workers, i+2*workers, .. Takes no memory. Throws UserError unless 1 <= workers <=
  /// kMaxWorkers; there may be fewer examples than workers.
  static Shares strided(std::size_t examples, std::size_t workers);
  /// Worker i owns shares[i], which may be empty; its units are consecutive entries. Throws UserError unless
  /// every example of 0..examples-1 stands in exactly one share. 8 bytes an example.
  Shares(std::size_t examples, const std::vector<std::vector<Index>>& shares);

  [[nodiscard]] std::size_t examples() const { return examples_; }
  [[nodiscard]] std::size_t workers() const { return workers_; }
  /// Examples of one worker.
  [[nodiscard]] std::size_t size(std::size_t worker) const;
  [[nodiscard]] std::vector<Index> share(std::size_t worker) const;
  /// The `local`-th example of a worker.
  [[nodiscard]] Index example(std::size_t worker, std::size_t local) const;
  /// Where this example stands in the worker's share; nothing if it is another worker's.
  [[nodiscard]] std::optional<Index> local(std::size_t worker, Index of) const;

  /// A hash of everything, the same on every machine.
  [[nodiscard]] std::uint64_t fingerprint() const;
  bool operator==(const Shares&) const = default;

  void save(State& state) const;
  /// Throws StateMismatch.
  static Shares load(const State& state);

 private:
  Shares(std::size_t examples, std::size_t workers) : examples_(examples), workers_(workers) {}
  [[nodiscard]] bool is_strided() const { return begins_.empty(); }

  std::size_t examples_;
  std::size_t workers_;
  std::vector<std::uint64_t> begins_;  ///< of each share in owned_, and its end; empty if strided
  std::vector<Index> owned_;           ///< share after share
  std::vector<Index> local_;           ///< per example: its place in its share
};

/// Rank r of R hosts the workers [begin, end); a rank may host none.
struct Hosted {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] std::size_t size() const { return end - begin; }
  [[nodiscard]] bool contains(std::size_t worker) const { return worker >= begin && worker < end; }
};
Hosted hosted_workers(std::size_t workers, std::size_t rank, std::size_t ranks);

}  // namespace cdgrab
