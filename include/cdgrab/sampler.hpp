// SPDX-License-Identifier: Apache-2.0
// What a user holds: hands out indices, takes the vectors of what was handed out, and turns them
// into the next epoch's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cdgrab/geometry.hpp"
#include "cdgrab/herding.hpp"
#include "cdgrab/permutation.hpp"
#include "cdgrab/sketch.hpp"
#include "cdgrab/spec.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab {

/// `count` vectors of `dim` numbers, row by row, owned by the caller.
template <class T>
struct Rows {
  const T* data = nullptr;
  std::size_t count = 0;
  std::size_t dim = 0;
};

struct SamplerOptions {
  std::uint64_t seed = 0;
  /// The first epoch's order, a permutation of the units, a short one last; empty: seeded random (`fixed`:
  /// 0..n-1).
  std::vector<Index> initial_order = {};
  /// The tensors that make up a row; needed by sketch=kron only.
  std::vector<Shape> shapes = {};
  /// Diagnostics, free when off. herding keeps a copy of the epoch's vectors (n x d numbers), in the state
  /// too.
  bool record_herding = false;
  bool record_norms = false;
  bool record_timings = false;
};

/// Where an epoch stands: all that a stateful loader needs at every batch.
struct Position {
  std::uint64_t epoch = 0;
  std::uint64_t handed_out = 0;  ///< examples of the order before this place

  bool operator==(const Position&) const = default;
};

/// What became of the units of one epoch. observed + unobserved = all.
struct EpochReport {
  std::uint64_t epoch = 0;
  std::size_t observed = 0;    ///< vectors taken, the finite ones and the others
  std::size_t not_finite = 0;  ///< of these, passed over: they count as unseen
  std::size_t unpaired = 0;    ///< of these, left without a partner: they count as unseen
  std::size_t unobserved = 0;  ///< never observed
};

/// The herding bound of the order that was used and of the one made from it, over the vectors seen.
struct HerdingReport {
  HerdingBound used;
  HerdingBound next;
};

/// Seconds since construction.
struct Timings {
  double sketch = 0.0;
  double balance = 0.0;
  double order = 0.0;
  double diagnostics = 0.0;
};

/// Not thread-safe: one thread at a time. Every throwing call leaves the sampler as it was.
class Sampler {
 public:
  /// Orders `examples` examples. Vectors given to observe(Rows) live in a dense geometry of the
  /// sampler's own; a geometry passed in is used instead, through observe_block().
  Sampler(std::size_t examples, const Spec& spec, SamplerOptions options = {},
          std::unique_ptr<Geometry> geometry = nullptr);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;

  /// Starts to iterate. Begins the next epoch if anything was observed in the last pass or everything was
  /// handed out, else starts that pass over (a peek). After load(), seek() or replay(), the first call goes
  /// on from there.
  void begin();
  /// The loader drops batches of fewer examples: an epoch of which no more is left has been handed out. 1 at
  /// first. No part of the state, for it is the loader that knows.
  void drop_batches_below(std::size_t examples);

  /// The next `count` examples at most, of those that are not observed; empty when the epoch is through.
  /// Valid until the next call of a non-const member.
  std::span<const Index> next(std::size_t count);
  /// What next(count) would return, without handing it out.
  [[nodiscard]] std::vector<Index> upcoming(std::size_t count) const;

  /// The vectors of the oldest units handed out and not yet observed, in that order.
  template <class T>
  void observe(const Rows<T>& rows);
  /// The vectors of the units that hold the named examples, in any order.
  template <class T>
  void observe(const Rows<T>& rows, std::span<const Index> examples);

  /// The same for vectors that are already the current block of geometry(). Unless needs_vectors() there need
  /// be none: the examples count as seen.
  void observe_block();
  void observe_block(std::span<const Index> examples);
  /// The same with the vectors that the block is a sketch of, for what is recorded of them.
  template <class T>
  void observe_block(const Rows<T>& whole, std::span<const Index> examples);

  /// `score` only: one finite number per unit, used when the next order is made.
  void set_scores(std::span<const double> scores);

  /// Makes the next epoch's order from what was seen. Never fails for lack of observations.
  void end_epoch();

  [[nodiscard]] std::size_t examples() const;
  [[nodiscard]] std::size_t units() const;
  [[nodiscard]] const Spec& spec() const;
  [[nodiscard]] std::uint64_t seed() const;
  [[nodiscard]] std::uint64_t epoch() const;
  /// Whether the next order is made from vectors of this epoch. If not, whatever observe() is given counts as
  /// seen and is not looked at (orders that do not balance, and most epochs with every=).
  [[nodiscard]] bool needs_vectors() const;
  /// The order of the current epoch, in units. Frozen when the epoch begins.
  [[nodiscard]] std::span<const Index> order() const;
  /// The order that end_epoch() would make now.
  [[nodiscard]] std::vector<Index> next_order() const;
  /// Units handed out and not observed.
  [[nodiscard]] std::size_t outstanding() const;
  /// An example of each of the `count` oldest outstanding units after the first `skip`. Throws UserError if
  /// there are not that many.
  [[nodiscard]] std::vector<Index> oldest_outstanding(std::size_t skip, std::size_t count) const;
  /// Throws UserError if observe() would refuse these names now.
  void check_outstanding(std::span<const Index> examples);
  /// Null until vectors have been seen, unless one was passed in.
  [[nodiscard]] Geometry* geometry();

  [[nodiscard]] EpochReport report() const;       ///< of the epoch so far
  [[nodiscard]] EpochReport last_report() const;  ///< of the epoch that ended last
  /// Of the epoch that ended last, if all of it was recorded.
  [[nodiscard]] const std::optional<HerdingReport>& herding() const;
  /// |x| per unit, NaN where never seen; empty unless recorded.
  [[nodiscard]] std::span<const double> norms() const;
  [[nodiscard]] Timings timings() const;

  [[nodiscard]] Position position() const;
  /// Where training stands when a loader has run ahead of it: the oldest example that is not observed, or
  /// position() if nothing is being observed.
  [[nodiscard]] Position trained_position() const;
  /// Goes to a position of the current epoch; what was observed stays observed, and is not handed out again.
  void seek(const Position& position);
  /// Goes to the first example of the epoch and hands out all of it again, for a loop that passes over by
  /// itself what it has trained on; what was observed stays observed.
  void replay();

  /// Everything, at any moment; load() takes it back into a sampler made with the same arguments.
  [[nodiscard]] State state() const;
  void load(const State& state);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cdgrab
