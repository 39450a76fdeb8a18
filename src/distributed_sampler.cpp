// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/distributed_sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <future>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "cdgrab/balancer.hpp"
#include "cdgrab/dense_geometry.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/order.hpp"
#include "epoch.hpp"
#include "kernels/kernels.hpp"
#include "workers/coordinator.hpp"
#include "workers/queue.hpp"

namespace cdgrab {
namespace {

constexpr const char* kWhere = "DistributedSampler";
constexpr const char* kDeposit = "DistributedSampler::deposit";
constexpr const char* kAverage = "DistributedSampler::average";
constexpr const char* kLoad = "DistributedSampler::load";

constexpr Code kMiddle = middle_code(0, 0, 1);

template <class T>
constexpr DType kTypeOf = std::is_same_v<T, float> ? DType::kF32 : DType::kF64;

const Spec& checked(const Spec& spec) {
  if (spec.distributed()) return spec;
  throw UserError(kWhere, fmt::format("`{}` is an order of one worker; use cd-pair, id-pair or d-rr, or a "
                                      "Sampler",
                                      print_spec(spec)));
}

std::vector<std::size_t> unit_counts(const Shares& shares, std::size_t unit) {
  std::vector<std::size_t> units(shares.workers());
  for (std::size_t w = 0; w < units.size(); ++w) units[w] = unit_count(shares.size(w), unit);
  return units;
}

std::size_t sum_of(std::span<const std::size_t> counts) {
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum += count;
  return sum;
}

/// A hash of these words, in sequence.
std::uint64_t hash_of(std::span<const std::uint64_t> words) {
  std::vector<Index> halves;
  for (const std::uint64_t word : words)
    halves.insert(halves.end(), {static_cast<Index>(word >> 32), static_cast<Index>(word)});
  return order_hash(halves);
}

std::uint64_t hash_of(std::string_view text) {
  return order_hash(std::vector<Index>(text.begin(), text.end()));
}

std::string worker_key(std::size_t worker) { return fmt::format("worker.{}", worker); }

std::uint64_t stored_count(const State& state, std::string_view key) {
  const std::int64_t value = state.integer(key);
  if (value >= 0) return static_cast<std::uint64_t>(value);
  throw StateMismatch(kLoad, fmt::format("'{}' is {}; it cannot be negative", state.name(key), value));
}

DType stored_type(const State& state, std::string_view key) {
  const std::string& name = state.text(key);
  for (const DType type : {DType::kF32, DType::kF64})
    if (dtype_name(type) == name) return type;
  throw StateMismatch(kLoad, fmt::format("'{}' is '{}'; it is F32 or F64", state.name(key), name));
}

/// A value as it is, whatever its kind.
void copy_value(const State& from, std::string_view key, State& to) {
  std::visit([&](const auto& value) { to.set(key, value); }, from.entries().find(key)->second);
}

Array array_of(const Bytes& bytes) { return {DType::kU8, {bytes.size()}, {bytes.begin(), bytes.end()}}; }

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

}  // namespace

class DistributedSampler::Impl {
 public:
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
  [[nodiscard]] EpochReport report(std::size_t worker) const;
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
  void check_vectors(std::size_t dim, const char* where);
  template <class T>
  void prepare(std::size_t input_dim);
  template <class T>
  void balance_rows(std::size_t worker, const Rows<T>& rows, const std::vector<Index>& positions);
  void require_mode(bool sliced, const char* where) const;
  void balance_alone(std::size_t worker, const std::vector<Index>& positions);
  void pack_pairs(std::size_t worker, const std::vector<Index>& positions);
  void observed(std::size_t worker, const std::vector<Index>& positions);
  [[nodiscard]] std::optional<Operand> usable(std::size_t row) const;
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

// ---- construction

DistributedSampler::Impl::Impl(Shares shares, const Spec& spec, Communicator& communicator,
                               DistributedOptions options, SlicedGeometry geometry)
    : shares_(std::move(shares)),
      spec_(checked(spec)),
      options_(std::move(options)),
      duplicate_(options_.overlap ? std::shared_ptr<Communicator>(communicator.duplicate()) : nullptr),
      communicator_(duplicate_ ? duplicate_.get() : &communicator),
      hosted_(hosted_workers(shares_.workers(), communicator_->rank(), communicator_->ranks())),
      units_(sum_of(unit_counts(shares_, spec_.unit))),
      sender_(std::move(geometry.sender)),
      own_geometry_(sender_ == nullptr && !options_.local_geometry) {
  if ((sender_ == nullptr) != (geometry.holder == nullptr))
    throw UserError(kWhere, "one side of a sliced geometry; give the sender and the holder, or neither");
  if (sender_ != nullptr && !coordinates())
    throw UserError(kWhere, fmt::format("a sliced geometry for `{}`; only cd-pair has one: id-pair takes "
                                        "DistributedOptions::local_geometry",
                                        print_spec(spec_)));
  if (options_.local_geometry && !independent())
    throw UserError(kWhere, fmt::format("a local geometry for `{}`; only id-pair has one: cd-pair takes a "
                                        "sliced geometry",
                                        print_spec(spec_)));
  make_workers();
  for (std::size_t w = hosted_.begin; w < hosted_.end && options_.local_geometry; ++w) {
    here(w).geometry = options_.local_geometry(w);
    here(w).geometry->declare(here(w).balancer->registers());
  }
  coordinator_ = std::make_unique<Coordinator>(plan(), *communicator_, std::move(geometry.holder));
  queue_ = std::make_unique<Queue>(options_.overlap, options_.queue);
  start_first_epoch();
}

DistributedSampler::Impl::Impl(const Impl& like, std::uint64_t seed)
    : shares_(like.shares_),
      spec_(like.spec_),
      options_(like.options_),
      duplicate_(like.duplicate_),
      communicator_(like.communicator_),
      hosted_(like.hosted_),
      units_(like.units_),
      smallest_batch_(like.smallest_batch_),
      own_geometry_(like.own_geometry_) {
  options_.seed = seed;
  make_workers();
  coordinator_ = std::make_unique<Coordinator>(plan(), *communicator_, nullptr);
  queue_ = std::make_unique<Queue>(options_.overlap, options_.queue);
  start_first_epoch();
}

Coordinator::Plan DistributedSampler::Impl::plan() const {
  const std::uint64_t made[] = {hash_of(print_spec(spec_)), options_.seed, shares_.fingerprint(),
                                options_.whole_up_to};
  return {spec_,
          options_.seed,
          hash_of(made),
          unit_counts(shares_, spec_.unit),
          options_.hold_limit,
          options_.whole_up_to};
}

void DistributedSampler::Impl::make_workers() {
  const std::size_t workers = shares_.workers();
  last_reports_.resize(workers);
  visited_.resize(workers);
  for (std::size_t w = 0; w < workers; ++w) {
    const std::size_t examples = shares_.size(w);
    orders_.push_back(make_order(spec_, unit_count(examples, spec_.unit), examples % spec_.unit != 0));
    epochs_.emplace_back(examples, spec_.unit, spec_.levels(), false);
    epochs_.back().set_names([this, w](Index local) { return shares_.example(w, local); });
  }
  workers_.resize(hosted_.size());
  if (!independent()) return;
  for (std::size_t w = hosted_.begin; w < hosted_.end; ++w) {
    here(w).balancer.emplace(spec_, worker_seed(options_.seed, w), epochs_[w].units());
  }
}

void DistributedSampler::Impl::start_first_epoch() {
  for (std::size_t w = 0; w < epochs_.size(); ++w)
    epochs_[w].start(orders_[w]->first(worker_seed(options_.seed, w), epochs_[w].units()));
  start_epoch_rounds();
}

/// Tells the rounds that the epoch number_ has begun with the orders of epochs_.
void DistributedSampler::Impl::start_epoch_rounds() {
  std::vector<std::uint64_t> hashes;
  for (const Epoch& epoch : epochs_) hashes.push_back(cdgrab::order_hash(epoch.order()));
  hash_ = hash_of(hashes);
  coordinator_->begin_epoch(number_, hash_);
  for (HostedWorker& worker : workers_)
    if (worker.balancer) worker.balancer->begin_epoch(number_);
}

// ---- handing out

Epoch& DistributedSampler::Impl::any_epoch(std::size_t worker) {
  if (worker < epochs_.size()) return epochs_[worker];
  throw UserError(
      kWhere, fmt::format("worker {} of {}; allowed are 0..{}", worker, epochs_.size(), epochs_.size() - 1));
}

Epoch& DistributedSampler::Impl::hosted_epoch(std::size_t worker, const char* where) {
  if (hosted_.contains(worker)) return epochs_[worker];
  throw UserError(where, fmt::format("worker {} on rank {}, which hosts {} workers from {} on; ask the rank "
                                     "that hosts it",
                                     worker, communicator_->rank(), hosted_.size(), hosted_.begin));
}

std::size_t DistributedSampler::Impl::observed_here() const {
  std::size_t observed = 0;
  for (std::size_t w = hosted_.begin; w < hosted_.end; ++w) observed += epochs_[w].observed();
  return observed;
}

bool DistributedSampler::Impl::left_here() const {
  for (std::size_t w = hosted_.begin; w < hosted_.end; ++w)
    if (epochs_[w].left() >= smallest_batch_) return true;
  return false;
}

void DistributedSampler::Impl::begin() {
  // Where a state was loaded, others may have something left even if this rank has not.
  if (resumed_ && !resumed_over_) return;
  if (observed_here() > observed_before_ || (begun_ && !left_here())) {
    end_epoch();
  } else {
    for (std::size_t w = hosted_.begin; w < hosted_.end; ++w) epochs_[w].restart();
  }
  resumed_ = false;
  begun_ = true;
}

std::vector<Index> DistributedSampler::Impl::next(std::size_t worker, std::size_t count) {
  Epoch& epoch = hosted_epoch(worker, "DistributedSampler::next");
  begun_ = true;
  std::vector<Index> examples;
  bool any = true;
  while (any && examples.empty()) {
    const std::span<const Index> handed = epoch.next(count);
    any = !handed.empty();
    examples = to_visit(worker, handed);
  }
  if (!examples.empty() && resumed_) {
    resumed_ = false;
    observed_before_ = observed_here();
  }
  return examples;
}

/// What next() would return.
std::vector<Index> DistributedSampler::Impl::upcoming(std::size_t worker, std::size_t count) {
  const Epoch& epoch = hosted_epoch(worker, "DistributedSampler::upcoming");
  for (std::size_t places = count;; places += count) {
    const std::vector<Index> locals = epoch.upcoming(places);
    std::vector<Index> examples =
        to_visit(worker, std::span(locals).subspan(std::min(places - count, locals.size())));
    if (!examples.empty() || locals.size() < places || count == 0) return examples;
  }
}

/// These examples of the worker's share, but for those that were visited under other shares.
std::vector<Index> DistributedSampler::Impl::to_visit(std::size_t worker,
                                                      std::span<const Index> locals) const {
  std::vector<Index> examples;
  examples.reserve(locals.size());
  const std::vector<std::uint8_t>& visited = visited_[worker];
  for (const Index local : locals)
    if (visited.empty() || visited[local] == 0) examples.push_back(shares_.example(worker, local));
  return examples;
}

std::vector<Index> DistributedSampler::Impl::order(std::size_t worker) const {
  const Epoch& epoch = epochs_[worker];
  const std::size_t size = shares_.size(worker);
  std::vector<Index> examples;
  examples.reserve(size);
  for (const Index unit : epoch.order())
    for (std::size_t k = unit * spec_.unit; k < std::min((unit + 1) * spec_.unit, size); ++k)
      examples.push_back(shares_.example(worker, k));
  return examples;
}

// ---- observing

std::vector<Index> DistributedSampler::Impl::oldest(std::size_t worker, std::size_t count) {
  return hosted_epoch(worker, kDeposit).oldest(count);
}

std::vector<Index> DistributedSampler::Impl::named(std::size_t worker, std::span<const Index> examples) {
  Epoch& epoch = hosted_epoch(worker, kDeposit);
  std::vector<Index> locals;
  for (const Index example : examples) {
    const std::optional<Index> local = shares_.local(worker, example);
    if (!local)
      throw UserError(kDeposit, fmt::format("example {} is not in the share of worker {}; deposit it for the "
                                            "worker that owns it",
                                            example, worker));
    locals.push_back(*local);
  }
  return epoch.named(locals);
}

template <class T>
void DistributedSampler::Impl::check_vectors(std::size_t dim, const char* where) {
  if (!type_) return;
  if (*type_ != kTypeOf<T>)
    throw UserError(where, fmt::format("{} rows after {} ones; one type is allowed: convert them",
                                       dtype_name(kTypeOf<T>), dtype_name(*type_)));
  if (dim != input_dim_)
    throw UserError(where, fmt::format("vectors of length {} after ones of length {}; every vector must have "
                                       "the same length",
                                       dim, input_dim_));
}

/// What takes rows of this length, and the sketch before it.
template <class T>
void DistributedSampler::Impl::prepare(std::size_t input_dim) {
  RowPath<T>& way = path<T>();
  if (way.ready) return;
  way.sketch = make_sketch<T>(spec_.sketch, units_, input_dim, options_.shapes, options_.seed);
  const std::size_t dim = way.sketch == nullptr ? input_dim : way.sketch->output_dim();
  if (coordinates() && way.sender == nullptr) {
    auto sender = std::make_unique<DenseSliceSender<T>>(dim, communicator_->ranks(), holders(dim));
    way.sender = sender.get();
    sender_ = std::move(sender);
  }
  if (coordinates() && way.sender->dim() != dim)
    throw StateMismatch(kDeposit,
                        fmt::format("'geometry.dim' was {} in the loaded state and the sketch gives "
                                    "{}; pass the shapes it was made with",
                                    way.sender->dim(), dim));
  way.ready = true;
  way.dim = dim;
  if (!coordinates()) return;
  outgoing_.type = kTypeOf<T>;
  outgoing_.dim = dim;
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

void DistributedSampler::Impl::observed(std::size_t worker, const std::vector<Index>& positions) {
  epochs_[worker].count_observed(positions);
}

template <class T>
void DistributedSampler::Impl::deposit(std::size_t worker, const Rows<T>& rows,
                                       const std::vector<Index>& positions) {
  if (!own_geometry_)
    throw UserError(kDeposit,
                    "rows for a sampler with a geometry of its own; put them there and call deposit_block()");
  check_vectors<T>(rows.dim, kDeposit);
  if (rows.count == 0) return;
  require_mode(false, kDeposit);
  if (spec_.balances()) {
    prepare<T>(rows.dim);
    type_ = kTypeOf<T>;
    input_dim_ = rows.dim;
  }
  balance_rows(worker, rows, positions);
}

template <class T>
void DistributedSampler::Impl::balance_rows(std::size_t worker, const Rows<T>& rows,
                                            const std::vector<Index>& positions) {
  RowPath<T>& way = path<T>();
  if (coordinates()) {
    way.sender->set_block(way.shortened(rows), rows.count);
    pack_pairs(worker, positions);
  } else if (independent()) {
    if (here(worker).geometry == nullptr) make_geometry<T>(worker, way.dim);
    way.geometries[worker - hosted_.begin]->set_block(way.shortened(rows), rows.count);
    balance_alone(worker, positions);
  } else {
    deposit_block(worker, positions);
  }
}

std::size_t DistributedSampler::Impl::block_size(std::size_t worker) {
  hosted_epoch(worker, kDeposit);
  if (coordinates() && !own_geometry_) return sender_->block_size();
  if (independent() && !own_geometry_) return here(worker).geometry->block_size();
  throw UserError("DistributedSampler::deposit_block",
                  "this sampler was given no geometry; call deposit(worker, rows)");
}

void DistributedSampler::Impl::deposit_block(std::size_t worker, const std::vector<Index>& positions) {
  if (positions.empty()) return;
  if (coordinates()) {
    require_mode(false, kDeposit);
    return pack_pairs(worker, positions);
  }
  if (independent()) return balance_alone(worker, positions);
  for (const Index position : positions) epochs_[worker].codes()[position] = leaf_code(0);
  outgoing_.arrivals.push_back(
      {static_cast<std::uint32_t>(worker), positions, std::vector<Code>(positions.size(), leaf_code(0))});
  observed(worker, positions);
}

void DistributedSampler::Impl::require_mode(bool sliced, const char* where) const {
  if (!coordinates() || !sliced_carries_ || *sliced_carries_ == sliced) return;
  throw UserError(where,
                  "deposit() and average() of vectors that cd-pair balances, in one epoch; use one of the "
                  "two until end_epoch()");
}

/// `id-pair`: the worker's own accumulator, and its signs at once.
void DistributedSampler::Impl::balance_alone(std::size_t worker, const std::vector<Index>& positions) {
  HostedWorker& own = here(worker);
  const std::span<Code> codes = epochs_[worker].codes();
  own.balancer->observe(*own.geometry, positions, codes);
  Arrivals arrivals{static_cast<std::uint32_t>(worker), {}, {}};
  if (own.waiting) arrivals.positions.push_back(*own.waiting);
  arrivals.positions.insert(arrivals.positions.end(), positions.begin(), positions.end());
  own.waiting.reset();
  for (const Index position : arrivals.positions) {
    arrivals.codes.push_back(codes[position]);
    if (codes[position] == kMiddle) own.waiting = position;
  }
  outgoing_.arrivals.push_back(std::move(arrivals));
  observed(worker, positions);
}

/// The row, to unit length if the spec says so; nothing if its length is seen not to be finite.
std::optional<Operand> DistributedSampler::Impl::usable(std::size_t row) const {
  double scale = 1.0;
  if (spec_.normalize) {
    const double norm2 = sender_->norm2(row);
    if (!std::isfinite(norm2)) return std::nullopt;
    if (norm2 > 0.0) scale = 1.0 / std::sqrt(norm2);
  }
  return Operand::row(row, scale);
}

/// `cd-pair`: pairs as they arrive, differences packed for all ranks. What is not finite shows in a
/// difference; only then are rows looked at one by one, and the rest is paired anew.
void DistributedSampler::Impl::pack_pairs(std::size_t worker, const std::vector<Index>& positions) {
  struct Arrival {
    Operand source;
    Index position;
    bool told;  ///< all ranks know of it: the carry
  };
  sliced_carries_ = false;
  while (outgoing_.packed.size() < communicator_->ranks())
    outgoing_.packed.push_back(coordinator_->spares().take());
  HostedWorker& own = here(worker);
  const Register register_of_carry = worker - hosted_.begin;
  Arrivals out{static_cast<std::uint32_t>(worker), {}, {}};
  const auto tell = [&](Index position, Code code) {
    out.positions.push_back(position);
    out.codes.push_back(code);
    epochs_[worker].codes()[position] = code;
  };

  std::vector<Arrival> come;
  if (own.waiting) come.push_back({Operand::reg(register_of_carry), *own.waiting, true});
  for (std::size_t row = 0; row < positions.size(); ++row) {
    if (const std::optional<Operand> operand = usable(row))
      come.push_back({*operand, positions[row], false});
    else
      tell(positions[row], kNotFinite);
  }
  const auto finite = [&](const Arrival& arrival) {
    return arrival.told || sender_->finite(arrival.source.index);
  };
  std::size_t at = 0;
  while (come.size() - at >= 2) {
    std::vector<Vector> pairs;
    for (std::size_t k = at; k + 1 < come.size(); k += 2)
      pairs.push_back({come[k].source, come[k + 1].source, true});
    const std::size_t packed = sender_->pack(pairs, outgoing_.packed);
    for (std::size_t k = at; k < at + 2 * packed; ++k)
      if (!come[k].told) tell(come[k].position, kMiddle);
    at += 2 * packed;
    if (packed == pairs.size()) break;
    // The bad one of the two goes; both, if only their difference is not finite.
    std::array<bool, 2> good = {finite(come[at]), finite(come[at + 1])};
    if (good[0] && good[1]) good = {false, false};
    for (std::size_t k = 2; k-- > 0;) {
      if (good[k]) continue;
      tell(come[at + k].position, kNotFinite);
      come.erase(come.begin() + static_cast<std::ptrdiff_t>(at + k));
    }
  }
  own.waiting.reset();
  if (at < come.size()) {
    const Arrival& last = come[at];
    if (!finite(last)) {
      tell(last.position, kNotFinite);
    } else {
      own.waiting = last.position;
      if (!last.told) {
        sender_->keep(register_of_carry, last.source);
        tell(last.position, kMiddle);
      }
    }
  }
  sender_->end_block();
  outgoing_.arrivals.push_back(std::move(out));
  observed(worker, positions);
}

// ---- rounds

Outgoing DistributedSampler::Impl::take_outgoing() {
  Outgoing outgoing = std::exchange(outgoing_, {});
  outgoing_.type = outgoing.type;
  outgoing_.dim = outgoing.dim;
  outgoing.left = left_here();
  return outgoing;
}

/// job(coordinator) in its turn. Jobs are copied, so what cannot be is shared.
template <class Job>
void DistributedSampler::Impl::put(Job job) {
  auto shared = std::make_shared<Job>(std::move(job));
  queue_->put([shared, this] { (*shared)(*coordinator_); });
  apply_facts();
}

void DistributedSampler::Impl::drain() {
  queue_->drain();
  apply_facts();
}

void DistributedSampler::Impl::apply_facts() {
  for (const Fact& fact : coordinator_->take_facts()) {
    Epoch& epoch = epochs_[fact.worker];
    Code& code = epoch.codes()[fact.position];
    const bool is_new = code == kUnobserved;
    code = fact.code;
    if (is_new) epoch.count_observed(std::span(&fact.position, 1));
  }
}

void DistributedSampler::Impl::step() {
  put([outgoing = take_outgoing()](Coordinator& rounds) mutable { rounds.step(std::move(outgoing)); });
}

template <class T>
void DistributedSampler::Impl::average(std::span<const std::span<const T>> gradients,
                                       std::span<const double> weights, std::span<T> mean) {
  if (gradients.size() != hosted_.size() || weights.size() != hosted_.size())
    throw UserError(kAverage,
                    fmt::format("{} gradients and {} weights on a rank that hosts {} workers; give one "
                                "of each per worker, an empty one if it has none",
                                gradients.size(), weights.size(), hosted_.size()));
  const bool balanced = coordinates() && spec_.sketch.kind == SketchKind::kNone;
  if (spec_.balances() && !own_geometry_)
    throw UserError(kAverage,
                    "a sampler with a geometry of its own; averaging balances the gradients "
                    "themselves: make the sampler without");
  if (balanced) require_mode(true, kAverage);
  if (spec_.balances()) check_vectors<T>(mean.size(), kAverage);
  std::vector<std::optional<Index>> positions(hosted_.size());
  for (std::size_t h = 0; h < hosted_.size(); ++h) {
    if (gradients[h].empty()) continue;
    if (gradients[h].size() != mean.size())
      throw UserError(kAverage,
                      fmt::format("a gradient of {} numbers and a mean of {}; the two have one length",
                                  gradients[h].size(), mean.size()));
    if (!(weights[h] >= 0.0) || !std::isfinite(weights[h]))
      throw UserError(kAverage, fmt::format("the weight {} of worker {}; it is finite and not negative",
                                            weights[h], hosted_.begin + h));
    if (spec_.balances() || epochs_[hosted_.begin + h].outstanding() > 0)
      positions[h] = epochs_[hosted_.begin + h].oldest(1).front();
  }

  Averaging averaging;
  averaging.type = kTypeOf<T>;
  averaging.dim = mean.size();
  averaging.mean = reinterpret_cast<std::byte*>(mean.data());
  if (spec_.balances()) {
    type_ = kTypeOf<T>;
    input_dim_ = mean.size();
    if (!balanced) prepare<T>(mean.size());
  }
  if (balanced) {
    sliced_carries_ = true;
    outgoing_.type = kTypeOf<T>;
    outgoing_.dim = mean.size();
  }
  const auto& kernels = kernels::best<T>();
  for (std::size_t h = 0; h < hosted_.size(); ++h) {
    if (gradients[h].empty()) continue;
    const std::size_t worker = hosted_.begin + h;
    const T* row = gradients[h].data();
    Gradient gradient{static_cast<std::uint32_t>(worker), 0, kMiddle, 0, weights[h], 1.0};
    if (balanced) {
      gradient.position = *positions[h];
      gradient.balanced = 1;
      double norm2 = 0.0;
      if (spec_.normalize) norm2 = kernels.dot(row, nullptr, row, mean.size());
      if (norm2 > 0.0) gradient.scale = 1.0 / std::sqrt(norm2);
      if (!std::isfinite(norm2) || !kernels.finite(row, mean.size())) {
        gradient.code = kNotFinite;
        gradient.scale = 1.0;
      }
      epochs_[worker].codes()[gradient.position] = gradient.code;
      observed(worker, {gradient.position});
    } else if (positions[h]) {
      balance_rows(worker, Rows<T>{row, 1, mean.size()}, {*positions[h]});
    }
    averaging.gradients.push_back(gradient);
    averaging.rows.push_back(reinterpret_cast<const std::byte*>(row));
  }

  const auto written = std::make_shared<std::promise<void>>();
  const auto there = std::make_shared<bool>(false);
  averaging.done = [written, there] {
    *there = true;
    written->set_value();
  };
  put([written, there, outgoing = take_outgoing(),
       averaging = std::move(averaging)](Coordinator& rounds) mutable {
    try {
      rounds.average(std::move(outgoing), std::move(averaging));
    } catch (...) {
      if (!*there) written->set_exception(std::current_exception());
      throw;
    }
  });
  written->get_future().get();
}

// ---- the end of an epoch

EpochReport DistributedSampler::Impl::report(std::size_t worker) const {
  EpochReport report;
  report.epoch = number_;
  for (const Code code : epochs_[worker].codes()) {
    if (code == kUnobserved) ++report.unobserved;
    if (code == kNotFinite) ++report.not_finite;
    if (code == kMiddle) ++report.unpaired;
  }
  report.observed = epochs_[worker].units() - report.unobserved;
  return report;
}

void DistributedSampler::Impl::end_epoch() {
  put([outgoing = take_outgoing()](Coordinator& rounds) mutable { rounds.end_epoch(std::move(outgoing)); });
  drain();
  for (std::size_t w = 0; w < epochs_.size(); ++w) {
    last_reports_[w] = report(w);
    const Epoch& epoch = epochs_[w];
    epochs_[w].start(orders_[w]->next(
        {worker_seed(options_.seed, w), number_ + 1, {}, epoch.order(), epoch.codes(), {}, nullptr}));
  }
  for (HostedWorker& worker : workers_) {
    worker.waiting.reset();
    if (worker.balancer && worker.geometry != nullptr) worker.balancer->end_epoch(*worker.geometry);
  }
  visited_.assign(epochs_.size(), {});
  ++number_;
  start_epoch_rounds();
  sliced_carries_.reset();
  begun_ = false;
  resumed_ = false;
  observed_before_ = 0;
}

// ---- positions

void DistributedSampler::Impl::seek(std::size_t worker, const Position& position) {
  constexpr const char* kSeek = "DistributedSampler::seek";
  Epoch& epoch = hosted_epoch(worker, kSeek);
  if (position.epoch != number_)
    throw UserError(kSeek,
                    fmt::format("epoch {} while epoch {} is under way; load the state of that epoch first",
                                position.epoch, number_));
  if (position.handed_out > shares_.size(worker))
    throw UserError(kSeek, fmt::format("{} examples handed out of {}; at most all are", position.handed_out,
                                       shares_.size(worker)));
  epoch.seek(position.handed_out);
  resumed_ = true;
  resumed_over_ = false;
  begun_ = true;
}

void DistributedSampler::Impl::replay(std::size_t worker) {
  hosted_epoch(worker, "DistributedSampler::replay").replay();
  resumed_ = true;
  resumed_over_ = false;
  begun_ = true;
}

// ---- states

/// What the other ranks do not know.
State DistributedSampler::Impl::own_words() const {
  State state;
  state.set("begun", std::int64_t{begun_ ? 1 : 0});
  if (type_) {
    state.set("input_dim", static_cast<std::int64_t>(input_dim_));
    state.set("input_dtype", std::string(dtype_name(*type_)));
  }
  for (std::size_t w = hosted_.begin; w < hosted_.end; ++w) {
    const HostedWorker& own = workers_[w - hosted_.begin];
    State words;
    words.set("handed_out", static_cast<std::int64_t>(epochs_[w].handed_out()));
    words.set("waiting", own.waiting ? std::int64_t{*own.waiting} : -1);
    if (coordinates() && own.waiting) words.set("carry", sender_->carry(w - hosted_.begin));
    if (own.balancer) own.balancer->save(words);
    if (own.balancer && own.geometry != nullptr) own.geometry->save(words);
    state.set_part(worker_key(w), words);
  }
  return state;
}

/// What all ranks know.
void DistributedSampler::Impl::save_common(State& state) const {
  state.set("spec", print_spec(spec_));
  shares_.save(state);
  state.set("seed", static_cast<std::int64_t>(options_.seed));
  state.set("epoch", static_cast<std::int64_t>(number_));
  for (std::size_t w = 0; w < epochs_.size(); ++w) {
    State words;
    epochs_[w].save(words);
    if (!hosted_.contains(w)) words.set("handed_out", std::int64_t{0});  // its rank knows
    if (!visited_[w].empty()) words.set("visited", std::span<const std::uint8_t>(visited_[w]));
    state.set_part(worker_key(w), words);
  }
  coordinator_->save_bookkeeping(state);
}

State DistributedSampler::Impl::save() {
  drain();
  const auto parts = std::make_shared<std::vector<State>>();
  put([parts, outgoing = take_outgoing(), own = own_words()](Coordinator& rounds) mutable {
    *parts = rounds.save(std::move(outgoing), std::move(own));
  });
  drain();
  State state;
  save_common(state);
  std::int64_t begun = 0;
  for (std::size_t r = 0; r < parts->size(); ++r) {
    const State& part = (*parts)[r];
    begun = std::max(begun, part.integer("begun"));
    for (const char* key : {"input_dim", "input_dtype"})
      if (part.contains(key)) copy_value(part, key, state);
    const Hosted theirs = hosted_workers(shares_.workers(), r, parts->size());
    for (std::size_t w = theirs.begin; w < theirs.end; ++w)
      state.set_part(worker_key(w), part.part(worker_key(w)));
  }
  state.set("begun", begun);
  coordinator_->join_slices(*parts, state);
  return state;
}

void DistributedSampler::Impl::save_outgoing(State& state) const {
  Message message;
  message.arrivals = outgoing_.arrivals;
  state.set("outgoing.arrivals", array_of(encode_message(message)));
  for (std::size_t r = 0; r < outgoing_.packed.size(); ++r)
    state.set(fmt::format("outgoing.{}", r), array_of(outgoing_.packed[r]));
}

void DistributedSampler::Impl::load_outgoing(const State& state) {
  if (!state.contains("outgoing.arrivals")) return;
  try {
    outgoing_.arrivals = decode_message(state.array("outgoing.arrivals").bytes).arrivals;
  } catch (const CommunicationError&) {
    throw StateMismatch(kLoad, "'outgoing.arrivals' cannot be read; this is not a state that cdgrab wrote");
  }
  if (!state.contains("outgoing.0")) return;
  for (std::size_t r = 0; r < communicator_->ranks(); ++r) {
    const Array& packed = state.array(fmt::format("outgoing.{}", r));
    outgoing_.packed.emplace_back(packed.bytes.begin(), packed.bytes.end());
  }
}

State DistributedSampler::Impl::local_state() {
  drain();
  State state;
  save_common(state);
  state.set("rank", static_cast<std::int64_t>(communicator_->rank()));
  state.set("ranks", static_cast<std::int64_t>(communicator_->ranks()));
  state.set("left", std::int64_t{coordinator_->left_anywhere() || left_here() ? 1 : 0});
  const State own = own_words();
  for (const auto& [key, value] : own.entries()) copy_value(own, key, state);
  coordinator_->save_slices(state);
  if (outgoing_.type && coordinates()) {  // before the first round only this rank knows
    state.set("geometry.dim", static_cast<std::int64_t>(outgoing_.dim));
    state.set("geometry.dtype", std::string(dtype_name(*outgoing_.type)));
  }
  if (!outgoing_.arrivals.empty()) save_outgoing(state);
  return state;
}

void DistributedSampler::Impl::require_loadable(const State& state) const {
  const auto same = [&](std::string_view key, const auto& stored, const auto& here) {
    if (stored == here) return;
    throw StateMismatch(
        kLoad, fmt::format("'{}' is '{}' in the state and '{}' here; load it into a sampler of "
                           "the same arguments{}",
                           key, stored, here, state.contains("rank") ? ", on the same rank of as many" : ""));
  };
  same("spec", state.text("spec"), print_spec(spec_));
  same("examples", stored_count(state, "examples"), std::uint64_t{shares_.examples()});
  if (!state.contains("rank")) return;
  same("rank", stored_count(state, "rank"), std::uint64_t{communicator_->rank()});
  same("ranks", stored_count(state, "ranks"), std::uint64_t{communicator_->ranks()});
  same("workers", stored_count(state, "workers"), std::uint64_t{shares_.workers()});
}

LoadReport DistributedSampler::Impl::load(const State& state, Impl& old) {
  require_loadable(state);
  const Shares before = Shares::load(state);
  const bool local = state.contains("rank");
  const bool same_shares = before == shares_;
  if (local && !same_shares)
    throw StateMismatch(kLoad, "a state of one rank with other shares; load one that save() made");
  number_ = stored_count(state, "epoch");
  begun_ = state.integer("begun") != 0;
  if (same_shares)
    load_epochs(state);
  else
    deal_epochs(state, before);
  start_epoch_rounds();
  std::vector<std::size_t> arrived;
  for (const Epoch& epoch : epochs_) arrived.push_back(epoch.observed());
  coordinator_->load_bookkeeping(state, arrived, same_shares);
  if (local) load_outgoing(state);
  load_vectors(state, same_shares, old);

  resumed_ = true;
  resumed_over_ = std::all_of(epochs_.begin(), epochs_.end(),
                              [this](const Epoch& epoch) { return epoch.left() < smallest_batch_; });
  if (local) resumed_over_ = state.integer("left") == 0;
  return load_report(before);
}

LoadReport DistributedSampler::Impl::load_report(const Shares& before) const {
  LoadReport report;
  report.reshared = !(before == shares_);
  report.workers_before = before.workers();
  for (std::size_t w = 0; w < epochs_.size(); ++w)
    report.remaining += to_visit(w, epochs_[w].upcoming(shares_.size(w))).size();
  report.visited = shares_.examples() - report.remaining;
  if (!report.reshared) return report;
  report.text =
      fmt::format("{} workers took over from {} in epoch {}: {} examples visited, {} to come, each once",
                  shares_.workers(), before.workers(), number_, report.visited, report.remaining);
  if (coordinates())
    report.text += "; signs that had fallen and the accumulator stay, what waited counts as unseen";
  if (independent()) report.text += "; signs that had fallen stay, the workers' accumulators start anew";
  return report;
}

void DistributedSampler::Impl::load_epochs(const State& state) {
  for (std::size_t w = 0; w < epochs_.size(); ++w) {
    const State words = state.part(worker_key(w));
    epochs_[w].load(words);
    if (words.contains("visited")) visited_[w] = words.elements<std::uint8_t>("visited", shares_.size(w));
  }
}

/// Every example goes to its new worker. Units that were visited whole come first, and count as handed out;
/// of the others, what was visited is passed over. Both are in the sequence in which the old workers took
/// turns.
void DistributedSampler::Impl::deal_epochs(const State& state, const Shares& before) {
  const std::vector<Place> places = old_places(state, before);
  for (std::size_t w = 0; w < epochs_.size(); ++w) {
    const std::size_t size = shares_.size(w);
    std::vector<Place> units(epochs_[w].units(),
                             Place{std::numeric_limits<std::uint64_t>::max(), kUnobserved, true});
    for (std::size_t k = 0; k < size; ++k) {
      const Place& place = places[shares_.example(w, k)];
      Place& unit = units[k / spec_.unit];
      unit.turn = std::min(unit.turn, place.turn);
      unit.visited = unit.visited && place.visited;
      if (unit.code == kUnobserved) unit.code = place.code;
    }
    for (Place& unit : units)
      if (!unit.visited) unit.code = kUnobserved;
    std::vector<Index> order = identity_order(units.size());
    const auto whole = static_cast<std::ptrdiff_t>(size / spec_.unit);  // a short unit stays last
    std::sort(order.begin(), order.begin() + whole, [&](Index a, Index b) {
      if (units[a].visited != units[b].visited) return units[a].visited;
      return units[a].turn < units[b].turn;
    });
    const auto prefix = std::find_if(order.begin(), order.end(), [&](Index u) { return !units[u].visited; });
    std::vector<Code> codes;
    for (const Index unit : order) codes.push_back(units[unit].code);
    const std::size_t handed_out =
        std::min(static_cast<std::size_t>(prefix - order.begin()) * spec_.unit, size);
    State words;
    words.set("order.current", std::span<const Index>(order));
    words.set("codes", std::span<const Code>(codes));
    words.set("handed_out", static_cast<std::int64_t>(handed_out));
    epochs_[w].load(words);
    for (const Index local : epochs_[w].upcoming(size)) {
      if (!places[shares_.example(w, local)].visited) continue;
      visited_[w].resize(size);
      visited_[w][local] = 1;
    }
  }
}

/// Where every example stood under the shares of the state.
std::vector<DistributedSampler::Impl::Place> DistributedSampler::Impl::old_places(
    const State& state, const Shares& before) const {
  std::vector<Place> places(before.examples());
  for (std::size_t w = 0; w < before.workers(); ++w) {
    const State words = state.part(worker_key(w));
    Epoch epoch(before.size(w), spec_.unit, spec_.levels(), false);
    epoch.load(words);
    std::vector<std::uint8_t> visited(before.size(w));
    if (words.contains("visited")) visited = words.elements<std::uint8_t>("visited", before.size(w));
    std::size_t at = 0;
    for (std::size_t t = 0; t < epoch.units(); ++t) {
      const std::size_t first = epoch.order()[t] * spec_.unit;
      const Code code = std::as_const(epoch).codes()[t];
      for (std::size_t k = first; k < std::min(first + spec_.unit, before.size(w)); ++k, ++at)
        places[before.example(w, k)] = {t * before.workers() + w, code,
                                        at < epoch.handed_out() || code != kUnobserved || visited[k] != 0};
    }
  }
  return places;
}

void DistributedSampler::Impl::load_vectors(const State& state, bool same_shares, Impl& old) {
  if (state.contains("input_dim")) {
    input_dim_ = stored_count(state, "input_dim");
    type_ = stored_type(state, "input_dtype");
  }
  if (coordinates()) load_slices(state, same_shares, old);
  if (independent()) load_alone(state, same_shares, old);
}

/// `cd-pair`: the accumulator, and with the same shares what waits.
void DistributedSampler::Impl::load_slices(const State& state, bool same_shares, Impl& old) {
  const bool stored = state.contains("geometry.dim");
  const std::size_t dim = stored ? stored_count(state, "geometry.dim") : 0;
  if (!stored && own_geometry_) return;
  std::unique_ptr<SliceHolder> made;
  const SliceHolder* holder = old.coordinator_->holder();
  if (own_geometry_) {
    const auto dense = [&]<class T>(T) {
      auto sender = std::make_unique<DenseSliceSender<T>>(dim, communicator_->ranks(), holders(dim));
      path<T>().sender = sender.get();
      sender_ = std::move(sender);
      made = std::make_unique<DenseSliceHolder<T>>(dim, communicator_->rank(), holders(dim));
    };
    if (stored_type(state, "geometry.dtype") == DType::kF32)
      dense(float{});
    else
      dense(double{});
    holder = made.get();
  }
  std::optional<Coordinator::Slices> slices;
  std::vector<std::pair<Register, Array>> carries;
  const bool local = state.contains("rank");
  if (local && state.contains("slice.accumulator")) slices = coordinator_->read_slices(state);
  if (!local && stored) slices = coordinator_->read_whole(state, *holder);
  if (stored) {
    if (slices && !slices->carries.empty()) sliced_carries_ = true;
    for (std::size_t w = hosted_.begin; w < hosted_.end && same_shares; ++w) {
      load_waiting(state, w);
      if (!here(w).waiting) continue;
      carries.emplace_back(w - hosted_.begin, state.array(worker_key(w) + ".carry"));
      sliced_carries_ = false;
    }
  }
  if (!own_geometry_) {
    made = old.coordinator_->take_holder();
    sender_ = std::move(old.sender_);
  }
  for (const auto& [number, carry] : carries) sender_->set_carry(number, carry);
  outgoing_.type = made->dtype();
  outgoing_.dim = made->dim();
  if (slices || !own_geometry_) coordinator_->adopt(std::move(made), std::move(slices));
}

void DistributedSampler::Impl::load_waiting(const State& state, std::size_t worker) {
  const std::string key = worker_key(worker) + ".waiting";
  const std::int64_t position = state.integer(key);
  if (position < 0) return;
  if (static_cast<std::uint64_t>(position) >= epochs_[worker].units())
    throw StateMismatch(kLoad,
                        fmt::format("'{}' is {}, of {} units", key, position, epochs_[worker].units()));
  here(worker).waiting = static_cast<Index>(position);
}

/// `id-pair`: with the same shares, each worker's own balancer and registers.
void DistributedSampler::Impl::load_alone(const State& state, bool same_shares, Impl& old) {
  for (std::size_t w = hosted_.begin; w < hosted_.end && same_shares; ++w) {
    const State words = state.part(worker_key(w));
    load_waiting(state, w);
    here(w).balancer->load(words);
    if (!words.contains("geometry.dim") || !own_geometry_) continue;
    const std::size_t dim = stored_count(words, "geometry.dim");
    if (stored_type(state, "input_dtype") == DType::kF32)
      make_geometry<float>(w, dim);
    else
      make_geometry<double>(w, dim);
    here(w).geometry->load(words);
  }
  for (std::size_t w = hosted_.begin; w < hosted_.end && !own_geometry_; ++w) {
    std::unique_ptr<Geometry>& geometry = old.here(w).geometry;
    const State words = state.part(worker_key(w));
    if (same_shares && words.contains("geometry.dim")) {
      geometry->load(words);
    } else {
      for (Register r = 0; r < here(w).balancer->registers().size(); ++r) geometry->clear(r);
    }
    here(w).geometry = std::move(geometry);
  }
}

// ---- the public face

DistributedSampler::DistributedSampler(Shares shares, const Spec& spec, Communicator& communicator,
                                       DistributedOptions options, SlicedGeometry geometry)
    : impl_(std::make_unique<Impl>(std::move(shares), spec, communicator, std::move(options),
                                   std::move(geometry))) {}
DistributedSampler::~DistributedSampler() = default;
DistributedSampler::DistributedSampler(DistributedSampler&&) noexcept = default;
DistributedSampler& DistributedSampler::operator=(DistributedSampler&&) noexcept = default;

const Shares& DistributedSampler::shares() const { return impl_->shares_; }
const Spec& DistributedSampler::spec() const { return impl_->spec_; }
std::uint64_t DistributedSampler::seed() const { return impl_->options_.seed; }
std::size_t DistributedSampler::examples() const { return impl_->shares_.examples(); }
std::size_t DistributedSampler::workers() const { return impl_->shares_.workers(); }
std::size_t DistributedSampler::first_worker() const { return impl_->hosted_.begin; }
std::size_t DistributedSampler::hosted() const { return impl_->hosted_.size(); }

void DistributedSampler::begin() { impl_->begin(); }
void DistributedSampler::drop_batches_below(std::size_t examples) {
  impl_->smallest_batch_ = std::max<std::size_t>(examples, 1);
}
std::vector<Index> DistributedSampler::next(std::size_t worker, std::size_t count) {
  return impl_->next(worker, count);
}
std::vector<Index> DistributedSampler::upcoming(std::size_t worker, std::size_t count) const {
  return impl_->upcoming(worker, count);
}
std::size_t DistributedSampler::outstanding(std::size_t worker) const {
  return impl_->hosted_epoch(worker, "DistributedSampler::outstanding").outstanding();
}
std::vector<Index> DistributedSampler::oldest_outstanding(std::size_t worker, std::size_t skip,
                                                          std::size_t count) const {
  const Epoch& epoch = impl_->hosted_epoch(worker, "DistributedSampler::oldest_outstanding");
  const std::vector<Index> positions = epoch.oldest(skip + count);
  std::vector<Index> examples;
  for (std::size_t k = skip; k < positions.size(); ++k)
    examples.push_back(impl_->shares_.example(worker, epoch.order()[positions[k]] * impl_->spec_.unit));
  return examples;
}
void DistributedSampler::check_outstanding(std::size_t worker, std::span<const Index> examples) {
  static_cast<void>(impl_->named(worker, examples));
}

template <class T>
void DistributedSampler::deposit(std::size_t worker, const Rows<T>& rows) {
  impl_->deposit(worker, rows, impl_->oldest(worker, rows.count));
}
template <class T>
void DistributedSampler::deposit(std::size_t worker, const Rows<T>& rows, std::span<const Index> examples) {
  if (examples.size() != rows.count)
    throw UserError(kDeposit, fmt::format("{} vectors and {} examples; one example per vector is needed",
                                          rows.count, examples.size()));
  impl_->deposit(worker, rows, impl_->named(worker, examples));
}
void DistributedSampler::deposit_block(std::size_t worker) {
  impl_->deposit_block(worker, impl_->oldest(worker, impl_->block_size(worker)));
}
void DistributedSampler::deposit_block(std::size_t worker, std::span<const Index> examples) {
  if (impl_->spec_.balances() && examples.size() != impl_->block_size(worker))
    throw UserError("DistributedSampler::deposit_block",
                    fmt::format("a block of {} rows and {} examples; one example per row is needed",
                                impl_->block_size(worker), examples.size()));
  impl_->deposit_block(worker, impl_->named(worker, examples));
}

void DistributedSampler::step() { impl_->step(); }
template <class T>
void DistributedSampler::average(std::span<const std::span<const T>> gradients,
                                 std::span<const double> weights, std::span<T> mean) {
  impl_->average(gradients, weights, mean);
}
void DistributedSampler::end_epoch() { impl_->end_epoch(); }

#define CDGRAB_INSTANTIATE(T)                                                                                \
  template void DistributedSampler::deposit<T>(std::size_t, const Rows<T>&);                                 \
  template void DistributedSampler::deposit<T>(std::size_t, const Rows<T>&, std::span<const Index>);         \
  template void DistributedSampler::average<T>(std::span<const std::span<const T>>, std::span<const double>, \
                                               std::span<T>);
CDGRAB_INSTANTIATE(float)
CDGRAB_INSTANTIATE(double)
#undef CDGRAB_INSTANTIATE

std::uint64_t DistributedSampler::epoch() const { return impl_->number_; }
std::uint64_t DistributedSampler::steps() const { return impl_->coordinator_->steps(); }
std::vector<Index> DistributedSampler::order(std::size_t worker) const {
  static_cast<void>(impl_->any_epoch(worker));
  return impl_->order(worker);
}
std::uint64_t DistributedSampler::order_hash() const { return impl_->hash_; }
EpochReport DistributedSampler::report(std::size_t worker) const {
  static_cast<void>(impl_->any_epoch(worker));
  return impl_->report(worker);
}
EpochReport DistributedSampler::last_report(std::size_t worker) const {
  static_cast<void>(impl_->any_epoch(worker));
  return impl_->last_reports_[worker];
}
std::size_t DistributedSampler::held_peak() const { return impl_->coordinator_->held_peak(); }
Geometry* DistributedSampler::geometry(std::size_t worker) { return impl_->geometry(worker); }
SliceSender* DistributedSampler::sender() { return impl_->own_geometry_ ? nullptr : impl_->sender_.get(); }

Position DistributedSampler::position(std::size_t worker) const {
  return {epoch(), impl_->hosted_epoch(worker, "DistributedSampler::position").handed_out()};
}
Position DistributedSampler::trained_position(std::size_t worker) const {
  const Position handed = position(worker);
  const Epoch& epoch = impl_->epochs_[worker];
  if (!impl_->spec_.balances() && epoch.observed() == 0) return handed;
  return {handed.epoch, std::min<std::uint64_t>(epoch.observed_prefix(), handed.handed_out)};
}
void DistributedSampler::seek(std::size_t worker, const Position& position) { impl_->seek(worker, position); }
void DistributedSampler::replay(std::size_t worker) { impl_->replay(worker); }

State DistributedSampler::save() { return impl_->save(); }
State DistributedSampler::local_state() { return impl_->local_state(); }
LoadReport DistributedSampler::load(const State& state) {
  impl_->drain();
  auto loaded = std::make_unique<Impl>(*impl_, static_cast<std::uint64_t>(state.integer("seed")));
  LoadReport report = loaded->load(state, *impl_);
  impl_ = std::move(loaded);
  return report;
}

}  // namespace cdgrab
