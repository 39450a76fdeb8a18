// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cdgrab/error.hpp"
#include "distributed_sampler/impl.hpp"
#include "epoch_summary.hpp"

namespace cdgrab {
namespace {

constexpr const char* kMaking = "DistributedSampler";

const Spec& checked(const Spec& spec) {
  if (spec.distributed()) return spec;
  throw UserError(kMaking, fmt::format("`{}` is an order of one worker; use cd-pair, id-pair or d-rr, or a "
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

}  // namespace

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
    throw UserError(kMaking, "one side of a sliced geometry; give the sender and the holder, or neither");
  if (sender_ != nullptr && !coordinates())
    throw UserError(kMaking, fmt::format("a sliced geometry for `{}`; only cd-pair has one: id-pair takes "
                                         "DistributedOptions::local_geometry",
                                         print_spec(spec_)));
  if (options_.local_geometry && !independent())
    throw UserError(kMaking, fmt::format("a local geometry for `{}`; only id-pair has one: cd-pair takes a "
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
      kMaking, fmt::format("worker {} of {}; allowed are 0..{}", worker, epochs_.size(), epochs_.size() - 1));
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
    if (epochs_[w].has_left(smallest_batch_)) return true;
  return false;
}

void DistributedSampler::Impl::begin() {
  // Where a state was loaded, others may have something left even if this rank has not: the first pass goes
  // on.
  if (resumed_ && !resumed_over_) {
    resumed_ = false;
    observed_before_ = observed_here();
    return;
  }
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

// ---- the end of an epoch

void DistributedSampler::Impl::end_epoch() {
  put([outgoing = take_outgoing()](Coordinator& rounds) mutable { rounds.end_epoch(std::move(outgoing)); });
  drain();
  for (std::size_t w = 0; w < epochs_.size(); ++w) {
    last_reports_[w] = report_of(epochs_[w], number_);
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
    throw UserError(Impl::kDeposit,
                    fmt::format("{} vectors and {} examples; one example per vector is needed", rows.count,
                                examples.size()));
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
  return report_of(impl_->any_epoch(worker), impl_->number_);
}
EpochReport DistributedSampler::last_report(std::size_t worker) const {
  static_cast<void>(impl_->any_epoch(worker));
  return impl_->last_reports_[worker];
}
std::size_t DistributedSampler::held_peak() const { return impl_->coordinator_->held_peak(); }
Traffic DistributedSampler::traffic(Verb verb) const { return impl_->communicator_->traffic(verb); }
Geometry* DistributedSampler::geometry(std::size_t worker) { return impl_->geometry(worker); }
SliceSender* DistributedSampler::sender() { return impl_->own_geometry_ ? nullptr : impl_->sender_.get(); }

Position DistributedSampler::position(std::size_t worker) const {
  return {epoch(), impl_->hosted_epoch(worker, "DistributedSampler::position").handed_out()};
}
Position DistributedSampler::trained_position(std::size_t worker) const {
  return trained_position_of(impl_->any_epoch(worker), position(worker), impl_->spec_.balances());
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
