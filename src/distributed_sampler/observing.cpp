// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <exception>
#include <future>
#include <utility>

#include "cdgrab/error.hpp"
#include "distributed_sampler/impl.hpp"
#include "kernels/kernels.hpp"
#include "stored.hpp"

namespace cdgrab {
namespace {

constexpr const char* kAverage = "DistributedSampler::average";

}  // namespace

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
void DistributedSampler::Impl::check_vectors(std::size_t dim, const char* where) const {
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
  if (!options_.sketched)
    way.sketch = make_sketch<T>(spec_.sketch, units_, input_dim, options_.shapes, options_.seed);
  const std::size_t dim = way.sketch == nullptr ? input_dim : way.sketch->output_dim();
  if (coordinates() && way.sender == nullptr) {
    auto sender = std::make_unique<DenseSliceSender<T>>(dim, communicator_->ranks(), holders(dim));
    way.sender = sender.get();
    sender_ = std::move(sender);
  }
  const auto same = [dim](std::size_t loaded) {
    if (loaded == dim) return;
    throw StateMismatch(kDeposit,
                        fmt::format("'geometry.dim' was {} in the loaded state and the sketch gives "
                                    "{}; pass the shapes it was made with",
                                    loaded, dim));
  };
  if (coordinates()) same(way.sender->dim());
  for (const DenseGeometry<T>* geometry : way.geometries)
    if (geometry != nullptr) same(geometry->dim());
  way.ready = true;
  way.dim = dim;
  if (!coordinates()) return;
  outgoing_.type = kTypeOf<T>;
  outgoing_.dim = dim;
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
  epochs_[worker].count_observed(positions);
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
  epochs_[worker].count_observed(positions);
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
  sender_->pack({}, outgoing_.packed);
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
  epochs_[worker].count_observed(positions);
}

// ---- rounds

Outgoing DistributedSampler::Impl::take_outgoing() {
  Outgoing outgoing = std::exchange(outgoing_, {});
  outgoing_.type = outgoing.type;
  outgoing_.dim = outgoing.dim;
  outgoing.left = left_here();
  return outgoing;
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

/// The unit of each gradient that counts as observed. Throws UserError for what cannot be averaged.
template <class T>
std::vector<std::optional<Index>> DistributedSampler::Impl::units_of(
    std::span<const std::span<const T>> gradients, std::span<const double> weights, std::size_t dim) const {
  if (gradients.size() != hosted_.size() || weights.size() != hosted_.size())
    throw UserError(kAverage,
                    fmt::format("{} gradients and {} weights on a rank that hosts {} workers; give one "
                                "of each per worker, an empty one if it has none",
                                gradients.size(), weights.size(), hosted_.size()));
  if (spec_.balances() && !own_geometry_)
    throw UserError(kAverage,
                    "a sampler with a geometry of its own; averaging balances the gradients "
                    "themselves: make the sampler without");
  if (slices_averaged()) require_mode(true, kAverage);
  if (spec_.balances()) check_vectors<T>(dim, kAverage);
  std::vector<std::optional<Index>> positions(hosted_.size());
  for (std::size_t h = 0; h < hosted_.size(); ++h) {
    if (gradients[h].empty()) continue;
    if (gradients[h].size() != dim)
      throw UserError(kAverage,
                      fmt::format("a gradient of {} numbers and a mean of {}; the two have one length",
                                  gradients[h].size(), dim));
    if (!(weights[h] >= 0.0) || !std::isfinite(weights[h]))
      throw UserError(kAverage, fmt::format("the weight {} of worker {}; it is finite and not negative",
                                            weights[h], hosted_.begin + h));
    if (spec_.balances() || epochs_[hosted_.begin + h].outstanding() > 0)
      positions[h] = epochs_[hosted_.begin + h].oldest(1).front();
  }
  return positions;
}

/// The gradient of a unit, which is observed with it: its slices are what cd-pair balances.
template <class T>
Gradient DistributedSampler::Impl::balanced_by_slices(std::size_t worker, Index position,
                                                      std::span<const T> row) {
  const auto& kernels = kernels::best<T>();
  Gradient gradient{static_cast<std::uint32_t>(worker), position, kMiddle, 1, 0.0, 1.0};
  double norm2 = 0.0;
  if (spec_.normalize) norm2 = kernels.dot(row.data(), nullptr, row.data(), row.size());
  if (norm2 > 0.0) gradient.scale = 1.0 / std::sqrt(norm2);
  if (!std::isfinite(norm2) || !kernels.finite(row.data(), row.size())) {
    gradient.code = kNotFinite;
    gradient.scale = 1.0;
  }
  epochs_[worker].codes()[position] = gradient.code;
  epochs_[worker].count_observed(std::span(&position, 1));
  return gradient;
}

template <class T>
void DistributedSampler::Impl::average(std::span<const std::span<const T>> gradients,
                                       std::span<const double> weights, std::span<T> mean) {
  const std::vector<std::optional<Index>> positions = units_of(gradients, weights, mean.size());
  if (spec_.balances()) {
    type_ = kTypeOf<T>;
    input_dim_ = mean.size();
    if (!slices_averaged()) prepare<T>(mean.size());
  }
  if (slices_averaged()) {
    sliced_carries_ = true;
    outgoing_.type = kTypeOf<T>;
    outgoing_.dim = mean.size();
  }
  Averaging averaging;
  averaging.type = kTypeOf<T>;
  averaging.dim = mean.size();
  averaging.mean = reinterpret_cast<std::byte*>(mean.data());
  for (std::size_t h = 0; h < hosted_.size(); ++h) {
    if (gradients[h].empty()) continue;
    const std::size_t worker = hosted_.begin + h;
    Gradient gradient{static_cast<std::uint32_t>(worker), 0, kMiddle, 0, 0.0, 1.0};
    if (slices_averaged())
      gradient = balanced_by_slices(worker, *positions[h], gradients[h]);
    else if (positions[h])
      balance_rows(worker, Rows<T>{gradients[h].data(), 1, mean.size()}, {*positions[h]});
    gradient.weight = weights[h];
    averaging.gradients.push_back(gradient);
    averaging.rows.push_back(reinterpret_cast<const std::byte*>(gradients[h].data()));
  }
  put_averaging(std::move(averaging));
}

/// Returns when the mean has been written; the rest of the round may still be under way.
void DistributedSampler::Impl::put_averaging(Averaging averaging) {
  auto written = std::make_shared<std::promise<void>>();  // the job's alone: gone with it if it never runs
  std::future<void> mean = written->get_future();
  averaging.done = [written] { written->set_value(); };
  written.reset();
  put([outgoing = take_outgoing(), averaging = std::move(averaging)](Coordinator& rounds) mutable {
    rounds.average(std::move(outgoing), std::move(averaging));
  });
  try {
    mean.get();
  } catch (const std::future_error&) {
    drain();  // throws what went wrong
    throw;
  }
}

#define CDGRAB_INSTANTIATE(T)                                                             \
  template void DistributedSampler::Impl::deposit<T>(std::size_t, const Rows<T>&,         \
                                                     const std::vector<Index>&);          \
  template void DistributedSampler::Impl::average<T>(std::span<const std::span<const T>>, \
                                                     std::span<const double>, std::span<T>);
CDGRAB_INSTANTIATE(float)
CDGRAB_INSTANTIATE(double)
#undef CDGRAB_INSTANTIATE

}  // namespace cdgrab
