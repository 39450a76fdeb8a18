// SPDX-License-Identifier: Apache-2.0
// The rounds: what was deposited travels, and the signs fall of all pairs whose turn has come. One per rank;
// all do the same with the same numbers, and differ only in the slice that they hold.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cdgrab/bytes.hpp"
#include "cdgrab/communicator.hpp"
#include "cdgrab/shares.hpp"
#include "cdgrab/sign_rule.hpp"
#include "cdgrab/sliced_geometry.hpp"
#include "cdgrab/spec.hpp"
#include "cdgrab/state.hpp"
#include "workers/lanes.hpp"
#include "workers/message.hpp"
#include "workers/spares.hpp"

namespace cdgrab {

/// What a rank brings to a round.
struct Outgoing {
  std::vector<Bytes> packed;  ///< for each rank: the pairs that the arrivals complete, in their order
  std::vector<Arrivals> arrivals;
  bool left = false;               ///< a hosted worker has something to hand out still
  std::optional<DType> type = {};  ///< of the vectors that are balanced, if some were seen here
  std::size_t dim = 0;
};

/// Gradients to be averaged, of type `type`; all pointers are the caller's until `mean` has been written.
struct Averaging {
  DType type = DType::kF32;
  std::size_t dim = 0;
  std::vector<Gradient> gradients;
  std::vector<const std::byte*> rows;  ///< one per gradient
  std::byte* mean = nullptr;           ///< null: nobody here wants it
  std::function<void()> done;          ///< called when the mean has been written
};

/// Where a unit goes, as the rounds have found. Arrivals at this rank itself are not told.
struct Fact {
  std::uint32_t worker = 0;
  Index position = 0;
  Code code = 0;
};

/// Every verb but the constructor and those that say so is one of the rounds' thread.
class Coordinator {
 public:
  struct Plan {
    Spec spec;
    std::uint64_t seed = 0;
    std::uint64_t made = 0;          ///< a hash of all that must be the same on all ranks
    std::vector<std::size_t> units;  ///< of each worker
    std::size_t hold_limit = 0;
    std::size_t whole_up_to = 0;
  };

  /// A null holder is made, for rows in memory, when the first vectors come.
  Coordinator(Plan plan, Communicator& communicator, std::unique_ptr<SliceHolder> holder);

  /// Not while a round is under way. `orders`: a hash of all of them.
  void begin_epoch(std::uint64_t epoch, std::uint64_t orders);

  void step(Outgoing outgoing);
  void average(Outgoing outgoing, Averaging averaging);
  /// Rounds until every rank has come to this one; then all that waits is decided, and the registers are
  /// cleared.
  void end_epoch(Outgoing outgoing);
  /// A round, and then what each rank gives: its own words and its slices.
  std::vector<State> save(Outgoing outgoing, State own);

  /// For what is packed, and for what it becomes. Any thread.
  Spares& spares() { return spares_; }
  /// What has been found since the last call. Any thread.
  std::vector<Fact> take_facts();
  [[nodiscard]] std::uint64_t steps() const { return step_.load(); }
  [[nodiscard]] std::size_t held_peak() const { return held_peak_.load(); }

  // ---- states; not while a round is under way

  /// This rank's part of everything that is held.
  struct Slices {
    Bytes accumulator;
    std::vector<Bytes> pairs;
    std::map<std::size_t, Bytes> carries;  ///< by worker, where they are slices
  };

  /// What is the same on all ranks.
  void save_bookkeeping(State& state) const;
  /// This rank's slices, under keys that begin with "slice.".
  void save_slices(State& state) const;
  /// The slices of all ranks, made whole.
  void join_slices(std::span<const State> parts, State& state) const;
  /// The bookkeeping of the epoch under way, in which so many units of each worker have arrived. Where
  /// `lanes` is false, none of them waits for anything.
  void load_bookkeeping(const State& state, std::span<const std::size_t> arrived, bool lanes = true);
  /// After the bookkeeping: the slices of a state of this rank, or of one of whole vectors.
  [[nodiscard]] Slices read_slices(const State& state) const;
  [[nodiscard]] Slices read_whole(const State& state, const SliceHolder& holder) const;
  /// Puts these slices into the holder in place of what it holds, or nothing. Throws StateMismatch.
  static void fill(SliceHolder& holder, std::optional<Slices>& slices);
  /// Takes this holder, as it is, and carries that are slices.
  void adopt(std::unique_ptr<SliceHolder> holder, std::map<std::size_t, Bytes> carries);

  /// Whether these could be of workers that rank r hosts.
  [[nodiscard]] bool possible(std::span<const Arrivals> arrivals, std::size_t r) const;
  /// The lanes when these will have arrived, and how many pairs that completes.
  struct Expected {
    Lanes lanes;
    std::size_t pairs = 0;
  };
  [[nodiscard]] Expected after(std::span<const Arrivals> arrivals) const;
  /// The longest list that a message may hold.
  [[nodiscard]] std::size_t most_in_a_message() const { return most_; }

  /// True if some rank had something to hand out still when it last spoke.
  [[nodiscard]] bool left_anywhere() const;
  /// To be used by another coordinator.
  std::unique_ptr<SliceHolder> take_holder() { return std::move(holder_); }
  [[nodiscard]] SliceHolder* holder() { return holder_.get(); }

 private:
  /// Makes the holder of rows in memory, unless there is one.
  void require_holder(DType type, std::size_t dim);
  [[nodiscard]] bool coordinates() const { return plan_.spec.name == OrderName::kCoordinatedPair; }
  /// One round. True if every rank ends its epoch.
  bool round(Call call, Outgoing& outgoing, Averaging* averaging);
  [[nodiscard]] Message head(Call call, Outgoing& outgoing, const Averaging* averaging) const;
  [[nodiscard]] std::vector<Message> exchange_heads(const Message& mine);
  /// Throws CommunicationError for words of rank r that no rank of these would say.
  void require_sound(const Message& head, std::size_t r) const;
  [[nodiscard]] std::size_t holders(std::size_t dim) const;
  void require_fit(const std::vector<Message>& heads) const;
  void require_room(const std::vector<Message>& heads) const;
  void adopt_vectors(const std::vector<Message>& heads);
  [[nodiscard]] std::vector<Bytes> exchange_pairs(Outgoing& outgoing, const std::vector<Message>& heads);
  void arrive(const std::vector<Message>& heads, std::vector<Bytes> parcels);
  /// True if the unit completes a pair, here and below.
  static bool enter(Lanes& lanes, std::size_t worker, Index position, Code code);
  bool arrive(std::size_t worker, Index position, Code code);
  template <class T>
  void average_slices(const std::vector<Message>& heads, Averaging& averaging);
  template <class T>
  void keep_slices(const std::vector<Message>& heads, const std::vector<Bytes>& received, std::size_t size);
  void decide();
  void decide_whole(std::span<const WaitingPair> pairs);
  /// Signs of these, from products that are summed over the ranks or known here. judge(pair, product, norm2)
  /// is the sign, or 0.
  template <class Judge>
  void resolve(std::span<const WaitingPair> pairs, bool summed, Judge judge);
  void drop(std::span<const WaitingPair> pairs);
  int settle(const WaitingPair& pair, double product, double norm2);
  void tell(std::size_t worker, Index position, Code code);

  Plan plan_;
  Communicator& communicator_;
  std::size_t rank_;
  std::size_t ranks_;
  std::size_t most_;  ///< in a list of a message
  Hosted own_;
  std::unique_ptr<SliceHolder> holder_;
  SignRule sign_;
  Lanes lanes_;
  std::map<std::size_t, Bytes> carries_;  ///< averaging: this rank's slice of each worker's carry
  std::uint64_t epoch_ = 0;
  std::uint64_t orders_ = 0;
  std::atomic<std::uint64_t> step_ = 0;
  std::atomic<std::size_t> held_peak_ = 0;
  std::vector<std::uint8_t> left_;  ///< by rank
  std::vector<Fact> found_;         ///< in the round under way
  std::mutex facts_mutex_;
  std::vector<Fact> facts_;

  Spares spares_;

  // Scratch.
  Products products_;
  std::vector<double> sums_;
};

}  // namespace cdgrab
