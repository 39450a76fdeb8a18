// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/shares.hpp"

#include <fmt/format.h>

#include <array>
#include <string>

#include "cdgrab/error.hpp"
#include "cdgrab/random.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab {
namespace {

void require_workers(std::size_t workers) {
  if (workers >= 1 && workers <= kMaxWorkers) return;
  throw UserError("Shares", fmt::format("{} workers; 1..{} are allowed", workers, kMaxWorkers));
}

constexpr Index kNowhere = static_cast<Index>(kMaxExamples);

}  // namespace

std::uint64_t worker_seed(std::uint64_t seed, std::size_t worker) {
  if (worker == 0) return seed;
  return random_bits({seed, Purpose::kWorker, 0, static_cast<std::uint32_t>(worker)}, worker);
}

Shares Shares::strided(std::size_t examples, std::size_t workers) {
  require_workers(workers);
  if (examples > kMaxExamples)
    throw UserError("Shares", fmt::format("{} examples; at most {} are allowed", examples, kMaxExamples));
  return {examples, workers};
}

Shares::Shares(std::size_t examples, const std::vector<std::vector<Index>>& shares)
    : Shares(examples, shares.size()) {
  require_workers(workers_);
  local_.assign(examples, kNowhere);
  owned_.reserve(examples);
  begins_.push_back(0);
  for (std::size_t worker = 0; worker < workers_; ++worker) {
    for (const Index example : shares[worker]) {
      const bool known = example < examples;
      if (!known || local_[example] != kNowhere)
        throw UserError("Shares",
                        fmt::format("example {} of worker {} {}; give every example of 0..{} to exactly one "
                                    "worker, once",
                                    example, worker, known ? "stands in a share already" : "is out of range",
                                    examples == 0 ? 0 : examples - 1));
      local_[example] = static_cast<Index>(owned_.size() - begins_.back());
      owned_.push_back(example);
    }
    begins_.push_back(owned_.size());
  }
  if (owned_.size() != examples)
    throw UserError("Shares", fmt::format("the shares hold {} of {} examples; give every example to one "
                                          "worker",
                                          owned_.size(), examples));
}

std::size_t Shares::size(std::size_t worker) const {
  if (!is_strided()) return begins_[worker + 1] - begins_[worker];
  return examples_ / workers_ + (worker < examples_ % workers_ ? 1 : 0);
}

Index Shares::example(std::size_t worker, std::size_t local) const {
  if (!is_strided()) return owned_[begins_[worker] + local];
  return static_cast<Index>(worker + local * workers_);
}

std::vector<Index> Shares::share(std::size_t worker) const {
  std::vector<Index> examples(size(worker));
  for (std::size_t k = 0; k < examples.size(); ++k) examples[k] = example(worker, k);
  return examples;
}

std::optional<Index> Shares::local(std::size_t worker, Index of) const {
  if (of >= examples_) return std::nullopt;
  const auto local = is_strided() ? static_cast<Index>(of / workers_) : local_[of];
  if (local >= size(worker) || example(worker, local) != of) return std::nullopt;
  return local;
}

std::uint64_t Shares::fingerprint() const {
  std::uint64_t hash = 0;
  for (std::size_t worker = 0; worker < workers_; ++worker) {
    const std::uint64_t of_share = is_strided() ? worker : order_hash(share(worker));
    const std::array words = {static_cast<Index>(hash >> 32), static_cast<Index>(hash),
                              static_cast<Index>(of_share >> 32), static_cast<Index>(of_share),
                              static_cast<Index>(size(worker))};
    hash = order_hash(words);
  }
  return hash;
}

void Shares::save(State& state) const {
  state.set("examples", static_cast<std::int64_t>(examples_));
  state.set("workers", static_cast<std::int64_t>(workers_));
  if (is_strided()) return;
  const std::vector<std::int64_t> begins(begins_.begin(), begins_.end());
  state.set("shares.begins", std::span<const std::int64_t>(begins));
  state.set("shares.examples", std::span<const Index>(owned_));
}

Shares Shares::load(const State& state) {
  const std::int64_t examples = state.integer("examples");
  const std::int64_t workers = state.integer("workers");
  if (examples < 0 || workers < 0)
    throw StateMismatch("Shares::load", fmt::format("'examples' is {} and 'workers' is {}; neither can be "
                                                    "negative",
                                                    examples, workers));
  const auto n = static_cast<std::size_t>(examples);
  const auto m = static_cast<std::size_t>(workers);
  try {
    if (!state.contains("shares.begins")) return strided(n, m);
    const auto begins = state.elements<std::int64_t>("shares.begins", m + 1);
    const auto owned = state.elements<Index>("shares.examples", n);
    std::vector<std::vector<Index>> shares(m);
    for (std::size_t worker = 0; worker < m; ++worker) {
      const std::int64_t begin = begins[worker];
      const std::int64_t end = begins[worker + 1];
      if (begin < 0 || end < begin || end > examples)
        throw StateMismatch("Shares::load", fmt::format("'shares.begins' goes from {} to {} at worker {}, "
                                                        "of {} examples",
                                                        begin, end, worker, n));
      shares[worker].assign(owned.begin() + begin, owned.begin() + end);
    }
    return {n, shares};
  } catch (const UserError& error) {
    throw StateMismatch("Shares::load",
                        fmt::format("the shares of the state are none: {}; this is not a state that cdgrab "
                                    "wrote",
                                    error.what()));
  }
}

Hosted hosted_workers(std::size_t workers, std::size_t rank, std::size_t ranks) {
  return {rank * workers / ranks, (rank + 1) * workers / ranks};
}

}  // namespace cdgrab
