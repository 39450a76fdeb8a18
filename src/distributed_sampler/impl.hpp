// SPDX-License-Identifier: Apache-2.0
// What a DistributedSampler is inside. Its parts are in files of their own: `sampler` (made, handing out, the
// end of an epoch, the public face), `observing` (what comes in, and the rounds that it travels with),
// `states`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "cdgrab/balancer.hpp"
#include "cdgrab/dense_geometry.hpp"
#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/order.hpp"
#include "epoch.hpp"
#include "workers/coordinator.hpp"
#include "workers/queue.hpp"

namespace cdgrab {

/// Rows of one type on their way to what balances them: shortened, if the spec says so.
template <class T>
struct RowPath {
  bool ready = false;
  std::size_t dim = 0;  ///< of what is balanced
  std::unique_ptr<Sketch<T>> sketch;
  std::vector<T> sketched;
  DenseSliceSender<T>* sender = nullptr;      ///< cd-pair
  std::vector<DenseGeometry<T>*> geometries;  ///< id-pair: per hosted worker

  const T* shortened(const Rows<T>& rows) {
    if (sketch == nullptr) return rows.data;
    sketched.resize(rows.count * sketch->output_dim());
    sketch->apply(rows.data, rows.count, sketched.data());
    return sketched.data();
  }
};

class DistributedSampler::Impl {
 public:
  static constexpr const char* kDeposit = "DistributedSampler::deposit";  ///< where, in messages
  /// Of a unit that waits for its partner, or for its pair's sign.
  static constexpr Code kMiddle = middle_code(0, 0, 1);

  Impl(Shares shares, const Spec& spec, Communicator& communicator, DistributedOptions options,
       SlicedGeometry geometry);
  /// Another one of the same arguments and communicator, at the beginning; without the geometry passed in.
  Impl(const Impl& like, std::uint64_t seed);

  void begin();
  std::vector<Index> next(std::size_t worker, std::size_t count);
  [[nodiscard]] std::vector<Index> upcoming(std::size_t worker, std::size_t count);
  template <class T>
  void deposit(std::size_t worker, const Rows<T>& rows, const std::vector<Index>& positions);
  void deposit_block(std::size_t worker, const std::vector<Index>& positions);
  [[nodiscard]] std::size_t block_size(std::size_t worker);
  void step();
  template <class T>
  void average(std::span<const std::span<const T>> gradients, std::span<const double> weights,
               std::span<T> mean);
  void end_epoch();
  State save();
  State local_state();
  /// Into one just made like `old`, whose geometry is taken over where it was passed in: what throws before
  /// leaves `old` as it was.
  LoadReport load(const State& state, Impl& old);
  void seek(std::size_t worker, const Position& position);
  void replay(std::size_t worker);
  /// Waits for the rounds under way.
  void drain();

  [[nodiscard]] Geometry* geometry(std::size_t worker) {
    hosted_epoch(worker, "DistributedSampler::geometry");
    return here(worker).geometry.get();
  }
  [[nodiscard]] std::vector<Index> order(std::size_t worker) const;
  /// The worker's epoch. Throws UserError unless it is hosted here.
  Epoch& hosted_epoch(std::size_t worker, const char* where);
  [[nodiscard]] Epoch& any_epoch(std::size_t worker);
  [[nodiscard]] std::vector<Index> oldest(std::size_t worker, std::size_t count);
  [[nodiscard]] std::vector<Index> named(std::size_t worker, std::span<const Index> examples);

  Shares shares_;
  Spec spec_;
  DistributedOptions options_;
  std::shared_ptr<Communicator> duplicate_;  ///< for the rounds, if they run behind
  Communicator* communicator_;
  Hosted hosted_;
  std::size_t units_;  ///< of all workers
  std::vector<Epoch> epochs_;
  std::vector<std::unique_ptr<Order>> orders_;
  std::vector<EpochReport> last_reports_;
  std::uint64_t number_ = 0;  ///< of the epoch
  std::uint64_t hash_ = 0;    ///< of its orders
  std::size_t smallest_batch_ = 1;
  std::unique_ptr<SliceSender> sender_;
  bool own_geometry_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Queue> queue_;  ///< after what it works on: destroyed first

 private:
  /// What a rank keeps of a worker that it hosts.
  struct HostedWorker {
    std::optional<Balancer> balancer;  ///< id-pair
    std::unique_ptr<Geometry> geometry;
    std::optional<Index> waiting;  ///< position of the carry, if it is here and whole
  };

  template <class T>
  RowPath<T>& path() {
    if constexpr (std::is_same_v<T, float>)
      return float_path_;
    else
      return double_path_;
  }
  [[nodiscard]] bool coordinates() const { return spec_.name == OrderName::kCoordinatedPair; }
  [[nodiscard]] bool independent() const { return spec_.name == OrderName::kIndependentPair; }
  /// Gradients that are averaged are what cd-pair balances; sketches of them are not.
  [[nodiscard]] bool slices_averaged() const {
    return coordinates() && spec_.sketch.kind == SketchKind::kNone;
  }
  HostedWorker& here(std::size_t worker) { return workers_[worker - hosted_.begin]; }

  [[nodiscard]] std::vector<Index> to_visit(std::size_t worker, std::span<const Index> locals) const;
  void make_workers();
  void start_first_epoch();
  void start_epoch_rounds();
  [[nodiscard]] Coordinator::Plan plan() const;
  [[nodiscard]] std::size_t holders(std::size_t dim) const {
    return dim <= options_.whole_up_to ? 1 : communicator_->ranks();
  }
  template <class T>
  void check_vectors(std::size_t dim, const char* where) const;
  template <class T>
  void prepare(std::size_t input_dim);
  template <class T>
  void balance_rows(std::size_t worker, const Rows<T>& rows, const std::vector<Index>& positions);
  void require_mode(bool sliced, const char* where) const;
  void balance_alone(std::size_t worker, const std::vector<Index>& positions);
  void pack_pairs(std::size_t worker, const std::vector<Index>& positions);
  [[nodiscard]] std::optional<Operand> usable(std::size_t row) const;
  template <class T>
  [[nodiscard]] std::vector<std::optional<Index>> units_of(std::span<const std::span<const T>> gradients,
                                                           std::span<const double> weights,
                                                           std::size_t dim) const;
  template <class T>
  [[nodiscard]] Gradient balanced_by_slices(std::size_t worker, Index position, std::span<const T> row);
  void put_averaging(Averaging averaging);
  [[nodiscard]] Outgoing take_outgoing();
  template <class Job>
  void put(Job job);
  void apply_facts();
  [[nodiscard]] std::size_t observed_here() const;
  [[nodiscard]] bool left_here() const;

  [[nodiscard]] State own_words() const;
  void save_common(State& state) const;
  void save_outgoing(State& state) const;
  void require_loadable(const State& state) const;
  [[nodiscard]] LoadReport load_report(const Shares& before) const;
  void load_epochs(const State& state);
  /// Of an example, or of a unit.
  struct Place {
    std::uint64_t turn = 0;  ///< of the old workers
    Code code = kUnobserved;
    bool visited = false;
  };
  void deal_epochs(const State& state, const Shares& before);
  [[nodiscard]] std::vector<Place> old_places(const State& state, const Shares& before) const;
  void load_vectors(const State& state, bool same_shares, Impl& old);
  void load_slices(const State& state, bool same_shares, Impl& old);
  /// Rows in memory: what takes those of the state. Throws StateMismatch before it takes more memory than the
  /// state has.
  std::unique_ptr<SliceHolder> make_slices(const State& state);
  /// Throws StateMismatch where what waits in the state is not what its own words say.
  void require_waiting(const State& state, bool same_shares,
                       const std::optional<Coordinator::Slices>& slices) const;
  void require_lengths(const std::optional<Coordinator::Slices>& slices, std::size_t waiting,
                       std::size_t arriving) const;
  /// Throws StateMismatch unless vectors of the state's own length are balanced as `dim` numbers.
  void require_dim(std::size_t dim) const;
  void load_alone(const State& state, bool same_shares, Impl& old);
  template <class T>
  void make_geometry(std::size_t worker, std::size_t dim);
  void load_outgoing(const State& state);
  void load_waiting(const State& state, std::size_t worker);

  std::vector<HostedWorker> workers_;
  /// By worker and place in its share: 1 where an example of a unit that is to come was visited under other
  /// shares.
  std::vector<std::vector<std::uint8_t>> visited_;
  Outgoing outgoing_;
  std::optional<bool>
      sliced_carries_;  ///< cd-pair: how this epoch's vectors come: by average(), by deposit()
  std::size_t input_dim_ = 0;
  std::optional<DType> type_;
  RowPath<float> float_path_;
  RowPath<double> double_path_;
  bool begun_ = false;
  bool resumed_ = false;  ///< the position was set from outside, and nothing was handed out since
  bool resumed_over_ = false;
  std::size_t observed_before_ = 0;
};

/// job(coordinator) in its turn. Jobs are copied, so what cannot be is shared.
template <class Job>
void DistributedSampler::Impl::put(Job job) {
  auto shared = std::make_shared<Job>(std::move(job));
  queue_->put([shared, this] { (*shared)(*coordinator_); });
  apply_facts();
}

/// `id-pair`: where a worker's rows in memory live.
template <class T>
void DistributedSampler::Impl::make_geometry(std::size_t worker, std::size_t dim) {
  auto geometry = std::make_unique<DenseGeometry<T>>(dim);
  geometry->declare(here(worker).balancer->registers());
  path<T>().geometries.resize(hosted_.size());
  path<T>().geometries[worker - hosted_.begin] = geometry.get();
  here(worker).geometry = std::move(geometry);
}

}  // namespace cdgrab
