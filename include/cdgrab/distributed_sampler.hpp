// SPDX-License-Identifier: Apache-2.0
// What each of many ranks holds: the orders of M workers, made together (`cd-pair`), each alone (`id-pair`)
// or at random (`d-rr`; docs/math.md, section 5). Every rank keeps the orders of all workers and derives the
// same next ones; only vectors are split (docs/design.md, section 9).
//
//   sampler.begin();
//   while (..) {
//     for each hosted worker w: examples = sampler.next(w, B);  ..  sampler.deposit(w, rows);
//     sampler.step();                                            // or average() in place of both
//   }
//   sampler.end_epoch();                                         // answers ranks that have more batches
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cdgrab/communicator.hpp"
#include "cdgrab/sampler.hpp"
#include "cdgrab/shares.hpp"
#include "cdgrab/sliced_geometry.hpp"

namespace cdgrab {

/// The same on all ranks, except for the geometries.
struct DistributedOptions {
  std::uint64_t seed = 0;
  /// Rounds run on a thread of their own, with a duplicate of the communicator, while the caller goes on; the
  /// orders are the same, bit for bit. step() then returns at once unless `queue` rounds are waiting.
  bool overlap = false;
  std::size_t queue = 2;
  /// Most bytes that a rank may hold until signs fall: about B/2 slices for each worker in the usual round
  /// (B vectors per worker and step, a slice is 1/R of a vector), more where some workers lag behind. A round
  /// that would need more is refused on all ranks. The smallest of all ranks counts.
  std::size_t hold_limit = std::size_t{4} << 30;
  /// Vectors of at most so many numbers are not cut into slices: rank 0 has them whole. Of such short ones,
  /// sketches mostly, the sums of products would be most of what is sent.
  std::size_t whole_up_to = 1024;
  /// The tensors that make up a row; needed by sketch=kron only.
  std::vector<Shape> shapes = {};
  /// Rows are sketched where they are formed, and come as the spec's sketch leaves them.
  bool sketched = false;
  /// `id-pair` with vectors that are no rows in memory: makes the geometry of a hosted worker, for
  /// deposit_block().
  std::function<std::unique_ptr<Geometry>(std::size_t worker)> local_geometry = {};
};

/// What load() made of a state.
struct LoadReport {
  bool reshared = false;           ///< the state is of other shares, or of another number of workers
  std::size_t workers_before = 0;  ///< of the state
  std::size_t visited = 0;         ///< examples of this epoch that are not handed out again
  std::size_t remaining = 0;       ///< and those that will be
  std::string text;                ///< one sentence for a log, empty if nothing changed
};

/// One thread at a time. *Collective* calls are made by every rank in the same sequence: step() and
/// average(), save(), and end_epoch(); a rank that has come to end_epoch() goes on answering the others'
/// rounds until all have, so numbers of steps may differ. An error in one of them (another rank is gone, or
/// in another place; too much to hold) names the epoch, the step and, where known, the rank; the communicator
/// and the sampler are then of no use any more. Every other call that throws leaves the sampler as it was.
class DistributedSampler {
 public:
  /// `shares`, `spec` (one of the three names) and `options` are the same on all ranks: the first round
  /// compares them. The communicator is used until destruction. Collective with `overlap` only.
  DistributedSampler(Shares shares, const Spec& spec, Communicator& communicator,
                     DistributedOptions options = {}, SlicedGeometry geometry = {});
  ~DistributedSampler();
  DistributedSampler(DistributedSampler&&) noexcept;
  DistributedSampler& operator=(DistributedSampler&&) noexcept;

  [[nodiscard]] const Shares& shares() const;
  [[nodiscard]] const Spec& spec() const;
  [[nodiscard]] std::uint64_t seed() const;
  [[nodiscard]] std::size_t examples() const;
  [[nodiscard]] std::size_t workers() const;       ///< M, of all ranks
  [[nodiscard]] std::size_t first_worker() const;  ///< of those that this rank hosts
  [[nodiscard]] std::size_t hosted() const;        ///< how many they are

  // ---- handing out: local, and for hosted workers only

  /// Starts to iterate. If this rank has observed anything in the last pass, or has handed everything out,
  /// this is end_epoch(); else that pass is started over (a peek), without a word to others. After load() or
  /// seek() the first call goes on from there.
  void begin();
  /// The loader drops batches of fewer examples, as Sampler's does.
  void drop_batches_below(std::size_t examples);
  /// The next `count` examples of the worker at most, of those that are not observed; numbers of the whole
  /// data set. Empty when its epoch is through.
  std::vector<Index> next(std::size_t worker, std::size_t count);
  [[nodiscard]] std::vector<Index> upcoming(std::size_t worker, std::size_t count) const;
  /// Units handed out and not observed.
  [[nodiscard]] std::size_t outstanding(std::size_t worker) const;
  /// An example of each of the `count` oldest outstanding units after the first `skip`.
  [[nodiscard]] std::vector<Index> oldest_outstanding(std::size_t worker, std::size_t skip,
                                                      std::size_t count) const;
  /// Throws UserError if deposit() would refuse these names now.
  void check_outstanding(std::size_t worker, std::span<const Index> examples);

  // ---- observing: deposits are local, and travel with the next round

  /// The vectors of the worker's oldest outstanding units, in that order. T is float or double. The rows are
  /// the caller's again when it returns. `d-rr` looks at none: the units count as seen.
  template <class T>
  void deposit(std::size_t worker, const Rows<T>& rows);
  /// The vectors of the units that hold the named examples, in any order.
  template <class T>
  void deposit(std::size_t worker, const Rows<T>& rows, std::span<const Index> examples);
  /// The same for vectors that are already the current block of the geometry passed in: the sender's, or with
  /// `id-pair` that of geometry(worker).
  void deposit_block(std::size_t worker);
  void deposit_block(std::size_t worker, std::span<const Index> examples);

  /// Collective: a round. What was deposited travels, and the signs fall of all pairs whose turn has come.
  void step();
  /// Collective: gradient averaging and a round in one, for one vector per worker and step.
  /// mean = sum of weights * gradients / sum of weights over the workers of all ranks, added in the order of
  /// the workers: the same bits on all ranks and for any number of them; 0 if all weights are. gradients[h]
  /// is that of worker first_worker() + h, or empty if it has none this time; it counts as the deposit for
  /// its oldest outstanding unit. weights[h]: the examples behind it. All ranks average in the same round,
  /// but those that have come to end_epoch(). Within an epoch cd-pair takes its vectors by deposit() or by
  /// average(), not both.
  template <class T>
  void average(std::span<const std::span<const T>> gradients, std::span<const double> weights,
               std::span<T> mean);
  /// Collective: makes the next epoch's orders from what was seen. Never fails for lack of observations.
  void end_epoch();

  // ---- orders: of any worker

  [[nodiscard]] std::uint64_t epoch() const;
  /// Steps taken in this epoch by this rank, those answered for others included.
  [[nodiscard]] std::uint64_t steps() const;
  /// The worker's order of the current epoch: examples, in the numbers of the whole data set.
  [[nodiscard]] std::vector<Index> order(std::size_t worker) const;
  /// Of the orders of all workers: the same on all ranks.
  [[nodiscard]] std::uint64_t order_hash() const;
  /// Of the epoch so far, as far as this rank has heard, and of the epoch that ended last.
  [[nodiscard]] EpochReport report(std::size_t worker) const;
  [[nodiscard]] EpochReport last_report(std::size_t worker) const;
  /// The most bytes that this rank has held for pairs that waited for their signs.
  [[nodiscard]] std::size_t held_peak() const;
  /// Of the communicator that its rounds are made with: its own with `overlap`, else the one passed in.
  [[nodiscard]] Traffic traffic(Verb verb) const;
  /// The geometry of a hosted worker (`id-pair`), null if there is none yet.
  [[nodiscard]] Geometry* geometry(std::size_t worker);
  /// The sender that was passed in; null if none was.
  [[nodiscard]] SliceSender* sender();

  // ---- positions of hosted workers, as Sampler has them

  [[nodiscard]] Position position(std::size_t worker) const;
  [[nodiscard]] Position trained_position(std::size_t worker) const;
  void seek(std::size_t worker, const Position& position);
  void replay(std::size_t worker);

  // ---- states

  /// Collective: everything, the same on every rank and for any number of ranks. What was deposited travels
  /// first, as in step().
  [[nodiscard]] State save();
  /// What this rank has; load() takes it on the same rank of as many. Does not communicate (with `overlap` it
  /// waits for the rounds that were begun). All ranks' are to be made after the same step.
  [[nodiscard]] State local_state();
  /// Local, and to be called on all ranks. A state of the same shares: goes on bit for bit, whatever the
  /// number of ranks was. Of other shares of the same examples: what has not been visited in this epoch is
  /// visited exactly once, in the order of the old workers dealt to the new, and nothing else; signs that
  /// have fallen stay. Throws StateMismatch and changes nothing, but for a geometry that was passed in: what
  /// that holds may be the state's, so load another one before going on.
  LoadReport load(const State& state);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cdgrab
