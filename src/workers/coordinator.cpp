// SPDX-License-Identifier: Apache-2.0
#include "workers/coordinator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "cdgrab/error.hpp"
#include "kernels/kernels.hpp"
#include "stored.hpp"

namespace cdgrab {
namespace {

constexpr const char* kRound = "DistributedSampler";
constexpr const char* kLoad = "DistributedSampler::load";

/// Of a pair that waits for its partner or its sign.
constexpr Code kMiddle = middle_code(0, 0, 1);

std::size_t total_of(std::span<const std::size_t> units) {
  return std::accumulate(units.begin(), units.end(), std::size_t{0});
}

[[noreturn]] void diverged(const std::string& what) {
  throw CommunicationError("round", what + "; every rank must make the same calls with the same arguments");
}

/// As messages have it.
std::uint8_t type_number(DType type) { return static_cast<std::uint8_t>(1 + static_cast<int>(type)); }
DType type_of(std::uint8_t number) { return static_cast<DType>(number - 1); }

std::string carry_key(std::size_t worker) { return fmt::format("worker.{}.carry", worker); }

/// mean[i] = sum over k of weights[k] * rows[k][i] / total, in float64 and in the order of k: the same bits
/// wherever a slice begins.
template <class T>
void weighted_mean(std::span<const T* const> rows, std::span<const double> weights, T* mean,
                   std::size_t size) {
  constexpr std::size_t kTile = 1024;
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::array<double, kTile> sum;
  for (std::size_t begin = 0; begin < size; begin += kTile) {
    const std::size_t length = std::min(kTile, size - begin);
    std::fill_n(sum.begin(), length, 0.0);
    for (std::size_t k = 0; k < rows.size(); ++k) {
      if (weights[k] == 0.0) continue;
      const T* row = rows[k] + begin;
      for (std::size_t i = 0; i < length; ++i) sum[i] += weights[k] * static_cast<double>(row[i]);
    }
    for (std::size_t i = 0; i < length; ++i)
      mean[begin + i] = total == 0.0 ? T{0} : static_cast<T>(sum[i] / total);
  }
}

std::vector<std::uint64_t> numbers_of(std::span<const WaitingPair> pairs) {
  std::vector<std::uint64_t> numbers;
  for (const WaitingPair& pair : pairs) numbers.push_back(pair.number);
  return numbers;
}

SignPlace place_of(const WaitingPair& pair) { return {pair.second, static_cast<std::uint32_t>(pair.worker)}; }

}  // namespace

Coordinator::Coordinator(Plan plan, Communicator& communicator, std::unique_ptr<SliceHolder> holder)
    : plan_(std::move(plan)),
      communicator_(communicator),
      rank_(communicator.rank()),
      ranks_(communicator.ranks()),
      most_(std::max(ranks_, total_of(plan_.units))),
      own_(hosted_workers(plan_.units.size(), rank_, ranks_)),
      holder_(std::move(holder)),
      sign_(plan_.spec.sign, plan_.seed, total_of(plan_.units)),
      lanes_(plan_.units),
      left_(ranks_, 1),
      spares_(2 * ranks_) {}

void Coordinator::begin_epoch(std::uint64_t epoch, std::uint64_t orders) {
  epoch_ = epoch;
  orders_ = orders;
  step_ = 0;
  left_.assign(ranks_, 1);
  lanes_.start();
  sign_.begin_epoch(epoch);
}

// ---- a round

void Coordinator::step(Outgoing outgoing) { round(Call::kStep, outgoing, nullptr); }

void Coordinator::average(Outgoing outgoing, Averaging averaging) {
  round(Call::kAverage, outgoing, &averaging);
}

void Coordinator::end_epoch(Outgoing outgoing) {
  while (!round(Call::kEndEpoch, outgoing, nullptr)) outgoing = Outgoing{};
  carries_.clear();
  if (holder_ != nullptr) holder_->clear();
}

std::vector<State> Coordinator::save(Outgoing outgoing, State own) {
  round(Call::kSave, outgoing, nullptr);
  save_slices(own);
  const std::vector<std::byte> bytes = encode_state(own);
  std::vector<State> states;
  for (const auto& theirs : communicator_.all_gather(bytes))
    states.push_back(decode_state(theirs, "DistributedSampler::save"));
  return states;
}

bool Coordinator::round(Call call, Outgoing& outgoing, Averaging* averaging) {
  try {
    const std::vector<Message> heads = exchange_heads(head(call, outgoing, averaging));
    require_fit(heads);
    require_room(heads);
    adopt_vectors(heads);
    std::vector<Bytes> parcels = exchange_pairs(outgoing, heads);
    const bool averages =
        std::any_of(heads.begin(), heads.end(), [](const Message& m) { return m.call == Call::kAverage; });
    if (averages) {
      Averaging none;
      Averaging& given = averaging == nullptr ? none : *averaging;
      const auto speaker =
          std::find_if(heads.begin(), heads.end(), [](const Message& m) { return m.call == Call::kAverage; });
      given.dim = speaker->gradient_dim;
      if (type_of(speaker->gradient_type) == DType::kF32)
        average_slices<float>(heads, given);
      else
        average_slices<double>(heads, given);
    }
    arrive(heads, std::move(parcels));
    if (holder_ != nullptr) held_peak_ = std::max(held_peak_.load(), holder_->held_bytes());
    decide();
    ++step_;
    const std::scoped_lock lock(facts_mutex_);
    facts_.insert(facts_.end(), found_.begin(), found_.end());
    found_.clear();
    return std::all_of(heads.begin(), heads.end(),
                       [](const Message& m) { return m.call == Call::kEndEpoch; });
  } catch (const CommunicationError& error) {
    throw CommunicationError(kRound, fmt::format("epoch {}, step {}, on rank {} of {}: {}", epoch_,
                                                 step_.load(), rank_, ranks_, error.what()));
  }
}

Message Coordinator::head(Call call, Outgoing& outgoing, const Averaging* averaging) const {
  Message message;
  message.call = call;
  message.left = outgoing.left ? 1 : 0;
  message.epoch = epoch_;
  message.step = step_;
  message.made = plan_.made;
  message.orders = orders_;
  message.hold_limit = plan_.hold_limit;
  if (outgoing.type) {
    message.type = type_number(*outgoing.type);
    message.dim = outgoing.dim;
  } else if (holder_ != nullptr) {
    message.type = type_number(holder_->dtype());
    message.dim = holder_->dim();
  }
  if (holder_ != nullptr) message.held = holder_->held_bytes();
  outgoing.packed.resize(ranks_);
  for (const Bytes& packed : outgoing.packed) message.sizes.push_back(packed.size());
  message.arrivals = std::move(outgoing.arrivals);
  if (averaging != nullptr) {
    message.gradients = averaging->gradients;
    message.gradient_type = type_number(averaging->type);
    message.gradient_dim = averaging->dim;
  }
  return message;
}

std::vector<Message> Coordinator::exchange_heads(const Message& mine) {
  std::vector<Message> heads;
  for (const auto& bytes : communicator_.all_gather(encode_message(mine)))
    heads.push_back(decode_message(bytes, most_));
  for (std::size_t r = 0; r < ranks_; ++r) require_sound(heads[r], r);
  return heads;
}

bool Coordinator::possible(std::span<const Arrivals> arrivals, std::size_t r) const {
  const Hosted hosted = hosted_workers(plan_.units.size(), r, ranks_);
  return std::all_of(arrivals.begin(), arrivals.end(), [&](const Arrivals& a) {
    return hosted.contains(a.worker) &&
           std::all_of(a.positions.begin(), a.positions.end(),
                       [&](Index position) { return position < plan_.units[a.worker]; });
  });
}

void Coordinator::require_sound(const Message& head, std::size_t r) const {
  const Hosted hosted = hosted_workers(plan_.units.size(), r, ranks_);
  const auto known = [](std::uint8_t type) {
    return type == 0 || type_of(type) == DType::kF32 || type_of(type) == DType::kF64;
  };
  const bool gradients = std::all_of(head.gradients.begin(), head.gradients.end(), [&](const Gradient& g) {
    return hosted.contains(g.worker) && (g.balanced == 0 || g.position < plan_.units[g.worker]);
  });
  if (head.made != plan_.made) return;  // told of with all other ranks' words
  if (head.sizes.size() != ranks_ || !possible(head.arrivals, r) || !gradients || !known(head.type) ||
      !known(head.gradient_type) || (head.call == Call::kAverage && head.gradient_type == 0))
    diverged(fmt::format("what rank {} says is of workers, units or numbers that it cannot have", r));
}

/// Throws the same on all ranks, since all see the same heads.
void Coordinator::require_fit(const std::vector<Message>& heads) const {
  const auto same = [&](std::size_t r, auto Message::*field, std::string_view what) {
    if (heads[r].*field == heads[0].*field) return;
    diverged(fmt::format("{} is {} on rank {} and {} on rank 0", what, heads[r].*field, r, heads[0].*field));
  };
  const Message* vectors = nullptr;
  const Message* gradients = nullptr;
  for (std::size_t r = 0; r < ranks_; ++r) {
    const Message& head = heads[r];
    if (head.made != heads[0].made)
      diverged(
          fmt::format("rank {} was made with other shares, another spec, seed or options than rank 0", r));
    same(r, &Message::epoch, "the epoch");
    same(r, &Message::step, "the step");
    same(r, &Message::orders, "the hash of the orders");
    const bool together = (head.call == Call::kSave) == (heads[0].call == Call::kSave);
    if (!together)
      diverged(fmt::format("rank {} {} while rank 0 {}", r, call_name(head.call), call_name(heads[0].call)));
    if (head.type != 0) {
      if (vectors != nullptr && (vectors->type != head.type || vectors->dim != head.dim))
        diverged(
            fmt::format("the vectors of rank {} have {} numbers of {} bytes, those of rank {} have {} of {}",
                        r, head.dim, dtype_size(type_of(head.type)), vectors - heads.data(), vectors->dim,
                        dtype_size(type_of(vectors->type))));
      vectors = &head;
    }
    if (head.call == Call::kStep && gradients != nullptr) {
      diverged(fmt::format("rank {} steps while rank {} averages", r, gradients - heads.data()));
    }
    if (head.call != Call::kAverage) continue;
    for (std::size_t before = 0; before < r; ++before)
      if (heads[before].call == Call::kStep)
        diverged(fmt::format("rank {} averages while rank {} steps", r, before));
    if (gradients != nullptr &&
        (gradients->gradient_type != head.gradient_type || gradients->gradient_dim != head.gradient_dim))
      diverged(fmt::format("rank {} averages {} numbers of {} bytes, rank {} {} of {}", r, head.gradient_dim,
                           dtype_size(type_of(head.gradient_type)), gradients - heads.data(),
                           gradients->gradient_dim, dtype_size(type_of(gradients->gradient_type))));
    gradients = &head;
  }
}

/// How many ranks hold parts of a vector of so many numbers.
std::size_t Coordinator::holders(std::size_t dim) const {
  const bool known = holder_ != nullptr && holder_->dim() == dim;
  const bool whole = known ? holder_->whole() : dim <= plan_.whole_up_to;
  return whole ? 1 : ranks_;
}

void Coordinator::require_room(const std::vector<Message>& heads) const {
  const std::uint64_t limit =
      std::min_element(heads.begin(), heads.end(), [](const Message& a, const Message& b) {
        return a.hold_limit < b.hold_limit;
      })->hold_limit;
  for (std::size_t r = 0; r < ranks_; ++r) {
    std::uint64_t bytes = heads[r].held;
    for (const Message& head : heads) {
      bytes += head.sizes[r];
      if (head.gradients.empty()) continue;
      const Slice slice = slice_of(head.gradient_dim, r, holders(head.gradient_dim));
      const std::uint64_t each = slice.size() * dtype_size(type_of(head.gradient_type));
      for (const Gradient& gradient : head.gradients) bytes += gradient.balanced * each;
    }
    if (bytes <= limit) continue;
    throw UserError(
        kRound, fmt::format("epoch {}, step {}: rank {} would hold {} bytes of pair differences until their "
                            "signs fall; hold_limit allows {}: raise it, observe fewer vectors per step, "
                            "keep the workers in step, or shorten the vectors with sketch=",
                            epoch_, step_.load(), r, bytes, limit));
  }
}

void Coordinator::require_holder(DType type, std::size_t dim) {
  if (holder_ == nullptr && type == DType::kF32)
    holder_ = std::make_unique<DenseSliceHolder<float>>(dim, rank_, holders(dim));
  if (holder_ == nullptr && type == DType::kF64)
    holder_ = std::make_unique<DenseSliceHolder<double>>(dim, rank_, holders(dim));
}

/// A rank whose workers have seen no vector yet learns here what the others' are like.
void Coordinator::adopt_vectors(const std::vector<Message>& heads) {
  for (std::size_t r = 0; r < ranks_; ++r) {
    left_[r] = heads[r].left;
    if (heads[r].type != 0) require_holder(type_of(heads[r].type), heads[r].dim);
  }
}

std::vector<Bytes> Coordinator::exchange_pairs(Outgoing& outgoing, const std::vector<Message>& heads) {
  std::vector<Bytes> parcels(ranks_);
  const bool nothing = std::all_of(heads.begin(), heads.end(), [](const Message& head) {
    return std::all_of(head.sizes.begin(), head.sizes.end(), [](std::uint64_t size) { return size == 0; });
  });
  if (nothing) return parcels;
  std::vector<Communicator::Sent> send(outgoing.packed.begin(), outgoing.packed.end());
  std::vector<Communicator::Received> receive(ranks_);
  for (std::size_t r = 0; r < ranks_; ++r) {
    // What a rank has for itself stays where it is.
    if (r == rank_) continue;
    parcels[r] = spares_.take();
    parcels[r].resize(heads[r].sizes[rank_]);
    receive[r] = parcels[r];
  }
  send[rank_] = {};
  communicator_.all_to_all(send, receive);
  parcels[rank_] = std::move(outgoing.packed[rank_]);
  for (Bytes& packed : outgoing.packed) spares_.give(std::move(packed));
  return parcels;
}

// ---- arrivals

void Coordinator::tell(std::size_t worker, Index position, Code code) {
  found_.push_back({static_cast<std::uint32_t>(worker), position, code});
}

bool Coordinator::arrive(std::size_t worker, Index position, Code code) {
  if (!own_.contains(worker)) tell(worker, position, code);
  return coordinates() && enter(lanes_, worker, position, code);
}

bool Coordinator::enter(Lanes& lanes, std::size_t worker, Index position, Code code) {
  if (code == kMiddle) return lanes.arrive(worker, position);
  lanes.pass_over(worker, position);
  return false;
}

Coordinator::Expected Coordinator::after(std::span<const Arrivals> arrivals) const {
  Expected expected{lanes_, 0};
  for (const Arrivals& a : arrivals)
    for (std::size_t k = 0; k < a.positions.size(); ++k)
      if (enter(expected.lanes, a.worker, a.positions[k], a.codes[k])) ++expected.pairs;
  return expected;
}

void Coordinator::arrive(const std::vector<Message>& heads, std::vector<Bytes> parcels) {
  for (std::size_t r = 0; r < ranks_; ++r) {
    std::size_t pairs = 0;
    for (const Arrivals& arrivals : heads[r].arrivals)
      for (std::size_t k = 0; k < arrivals.positions.size(); ++k)
        if (arrive(arrivals.worker, arrivals.positions[k], arrivals.codes[k])) ++pairs;
    if (pairs > 0 || !parcels[r].empty()) holder_->hold(std::move(parcels[r]), pairs);
    if (heads[r].call != Call::kEndEpoch) continue;
    const Hosted hosted = hosted_workers(plan_.units.size(), r, ranks_);
    for (std::size_t worker = hosted.begin; worker < hosted.end; ++worker) lanes_.close(worker);
  }
}

// ---- averaging

/// All-to-all, a local sum, all-gather: a reduce-scatter that leaves every worker's slice here.
template <class T>
void Coordinator::average_slices(const std::vector<Message>& heads, Averaging& averaging) {
  const std::size_t dim = averaging.dim;
  const std::size_t parts = holders(dim);
  const Slice own = slice_of(dim, rank_, parts);
  std::vector<Bytes> packed(ranks_);
  std::vector<Communicator::Sent> send(ranks_);
  std::vector<Communicator::Received> receive(ranks_);
  std::vector<Bytes> received(ranks_);
  for (std::size_t r = 0; r < ranks_; ++r) {
    const Slice slice = slice_of(dim, r, parts);
    for (const std::byte* row : averaging.rows) {
      send[r] = {row + slice.begin * sizeof(T), slice.size() * sizeof(T)};
      if (averaging.rows.size() > 1) packed[r].append(send[r]);
    }
    if (averaging.rows.size() > 1) send[r] = packed[r];
    received[r] = spares_.take();
    received[r].resize(heads[r].gradients.size() * own.size() * sizeof(T));
    receive[r] = received[r];
  }
  communicator_.all_to_all(send, receive);

  std::vector<const T*> rows;
  std::vector<double> weights;
  for (std::size_t r = 0; r < ranks_; ++r) {
    for (std::size_t k = 0; k < heads[r].gradients.size(); ++k) {
      rows.push_back(reinterpret_cast<const T*>(received[r].data()) + k * own.size());
      weights.push_back(heads[r].gradients[k].weight);
    }
  }
  std::vector<T> unwanted(averaging.mean == nullptr ? dim : 0);
  T* mean = averaging.mean == nullptr ? unwanted.data() : reinterpret_cast<T*>(averaging.mean);
  weighted_mean<T>(rows, weights, mean + own.begin, own.size());
  for (std::size_t r = 0; r < ranks_; ++r) {
    const Slice slice = slice_of(dim, r, parts);
    receive[r] = std::as_writable_bytes(std::span(mean + slice.begin, slice.size()));
  }
  communicator_.all_gather(receive[rank_], receive);
  if (averaging.done) averaging.done();
  keep_slices<T>(heads, received, own.size());
  for (Bytes& buffer : received) spares_.give(std::move(buffer));
}

/// The slices are what cd-pair balances: a carry is a slice on every rank.
template <class T>
void Coordinator::keep_slices(const std::vector<Message>& heads, const std::vector<Bytes>& received,
                              std::size_t size) {
  const auto& kernels = kernels::best<T>();
  for (std::size_t r = 0; r < ranks_; ++r) {
    for (std::size_t k = 0; k < heads[r].gradients.size(); ++k) {
      const Gradient& gradient = heads[r].gradients[k];
      if (gradient.balanced == 0) continue;
      const T* row = reinterpret_cast<const T*>(received[r].data()) + k * size;
      const bool pair = arrive(gradient.worker, gradient.position, gradient.code);
      if (gradient.code != kMiddle) continue;
      Bytes& carry = carries_[gradient.worker];
      carry.resize(size * sizeof(T));
      T* waiting = reinterpret_cast<T*>(carry.data());
      const T scale = static_cast<T>(gradient.scale);
      if (pair) {
        kernels.blend(waiting, T{1}, waiting, -scale, row, size);
        holder_->hold(std::exchange(carry, {}), 1);
      } else {
        kernels.blend(waiting, scale, row, T{0}, nullptr, size);
      }
    }
  }
}

// ---- decisions

void Coordinator::decide() {
  if (!coordinates()) return;
  const std::vector<WaitingPair> due = lanes_.due();
  if (due.empty()) return;
  if (ranks_ > 1 && holder_->whole()) {
    decide_whole(due);
    return;
  }
  const std::size_t chunk = holder_->chunk();
  for (std::size_t begin = 0; begin < due.size(); begin += chunk)
    resolve(
        std::span(due).subspan(begin, std::min(chunk, due.size() - begin)), true,
        [&](const WaitingPair& pair, double product, double norm2) { return settle(pair, product, norm2); });
}

/// Rank 0 alone can tell the products, and has to decide to know them all; the others decide the same from
/// them.
void Coordinator::decide_whole(std::span<const WaitingPair> pairs) {
  const std::size_t count = pairs.size();
  std::vector<double> found(sign_.needs_norm() ? 2 * count : count);
  if (rank_ == 0) {
    SignRule ahead = sign_;
    std::size_t k = 0;
    const std::size_t chunk = holder_->chunk();
    for (std::size_t begin = 0; begin < count; begin += chunk)
      resolve(pairs.subspan(begin, std::min(chunk, count - begin)), false,
              [&](const WaitingPair& pair, double product, double norm2) {
                if (sign_.needs_norm()) found[count + k] = norm2;
                found[k++] = product;
                return std::isfinite(product) ? ahead.decide(product, norm2, place_of(pair)) : 0;
              });
  } else {
    drop(pairs);
  }
  communicator_.sum(found);
  for (std::size_t k = 0; k < count; ++k)
    settle(pairs[k], found[k], sign_.needs_norm() ? found[count + k] : 0.0);
}

template <class Judge>
void Coordinator::resolve(std::span<const WaitingPair> pairs, bool summed, Judge judge) {
  const std::size_t count = pairs.size();
  const std::vector<std::uint64_t> numbers = numbers_of(pairs);
  holder_->products(numbers, {count > 1, sign_.needs_norm()}, products_);
  sums_ = products_.inner;
  sums_.insert(sums_.end(), products_.gram.begin(), products_.gram.end());
  sums_.insert(sums_.end(), products_.norms.begin(), products_.norms.end());
  if (summed) communicator_.sum(sums_);

  const double* gram = sums_.data() + count;
  const double* norms = gram + count * (count - 1) / 2;
  std::vector<int> signs(count);
  for (std::size_t k = 0; k < count; gram += k, ++k) {
    double product = sums_[k];
    for (std::size_t j = 0; j < k; ++j)
      if (signs[j] != 0) product += signs[j] * gram[j];
    signs[k] = judge(pairs[k], product, sign_.needs_norm() ? norms[k] : 0.0);
  }
  holder_->combine(numbers, signs);
  drop(pairs);
}

int Coordinator::settle(const WaitingPair& pair, double product, double norm2) {
  if (!std::isfinite(product)) {
    tell(pair.worker, pair.first, kNotFinite);
    tell(pair.worker, pair.second, kNotFinite);
    return 0;
  }
  const int sign = sign_.decide(product, norm2, place_of(pair));
  tell(pair.worker, pair.first, leaf_code(sign > 0 ? 0 : 1));
  tell(pair.worker, pair.second, leaf_code(sign > 0 ? 1 : 0));
  return sign;
}

void Coordinator::drop(std::span<const WaitingPair> pairs) {
  for (Bytes& free : holder_->drop(numbers_of(pairs))) spares_.give(std::move(free));
}

std::vector<Fact> Coordinator::take_facts() {
  const std::scoped_lock lock(facts_mutex_);
  return std::exchange(facts_, {});
}

bool Coordinator::left_anywhere() const {
  return std::any_of(left_.begin(), left_.end(), [](std::uint8_t left) { return left != 0; });
}

// ---- states

void Coordinator::save_bookkeeping(State& state) const {
  state.set("step", static_cast<std::int64_t>(step_.load()));
  if (!coordinates()) return;
  State lanes;
  lanes_.save(lanes);
  state.set_part("lanes", lanes);
  sign_.save(state);
  const bool sliced = std::any_of(carries_.begin(), carries_.end(), [this](const auto& carry) {
    return lanes_.carry(carry.first).has_value();
  });
  state.set("carries.sliced", std::int64_t{sliced ? 1 : 0});
  if (holder_ == nullptr) return;
  state.set("geometry.dim", static_cast<std::int64_t>(holder_->dim()));
  state.set("geometry.dtype", std::string(dtype_name(holder_->dtype())));
  State words;
  holder_->save(words);
  state.set_part("geometry", words);
}

void Coordinator::save_slices(State& state) const {
  if (holder_ == nullptr) return;
  state.set("slice.accumulator", array_of(holder_->accumulator()));
  const std::vector<WaitingPair> waiting = lanes_.waiting();
  for (std::size_t k = 0; k < waiting.size(); ++k)
    state.set(fmt::format("slice.pair.{}", k), array_of(holder_->held(waiting[k].number)));
  for (const auto& [worker, carry] : carries_)
    if (lanes_.carry(worker)) state.set("slice." + carry_key(worker), array_of(carry));
}

void Coordinator::join_slices(std::span<const State> parts, State& state) const {
  if (holder_ == nullptr) return;
  std::vector<State> slices;
  for (const State& part : parts) slices.push_back(part.part("slice"));
  for (const auto& [key, value] : slices[rank_].entries()) {
    std::vector<Bytes> pieces;
    for (const State& slice : slices) pieces.push_back(bytes_of(slice.array(key)));
    state.set(key, holder_->join(pieces));
  }
}

void Coordinator::load_bookkeeping(const State& state, std::span<const std::size_t> arrived, bool lanes) {
  step_ = stored_count(state, "step", kLoad);
  if (state.contains("left")) left_.assign(ranks_, state.integer("left") != 0 ? 1 : 0);
  if (!coordinates()) return;
  lanes_.start(arrived);
  sign_.load(state);
  if (lanes) lanes_.load(state.part("lanes"));
}

Coordinator::Slices Coordinator::read_slices(const State& state) const {
  Slices slices{bytes_of(state.array("slice.accumulator")), {}, {}};
  const std::size_t waiting = lanes_.waiting().size();
  for (std::size_t k = 0; k < waiting; ++k)
    slices.pairs.push_back(bytes_of(state.array(fmt::format("slice.pair.{}", k))));
  for (std::size_t worker = 0; worker < lanes_.workers() && state.integer("carries.sliced") != 0; ++worker)
    if (lanes_.carry(worker)) slices.carries[worker] = bytes_of(state.array("slice." + carry_key(worker)));
  return slices;
}

Coordinator::Slices Coordinator::read_whole(const State& state, const SliceHolder& holder) const {
  Slices slices{holder.cut(state.array("accumulator")), {}, {}};
  const std::size_t waiting = lanes_.waiting().size();
  for (std::size_t k = 0; k < waiting; ++k)
    slices.pairs.push_back(holder.cut(state.array(fmt::format("pair.{}", k))));
  for (std::size_t worker = 0; worker < lanes_.workers() && state.integer("carries.sliced") != 0; ++worker)
    if (lanes_.carry(worker)) slices.carries[worker] = holder.cut(state.array(carry_key(worker)));
  return slices;
}

void Coordinator::fill(SliceHolder& holder, std::optional<Slices>& slices) {
  holder.clear();
  if (!slices) return;
  holder.set_accumulator(std::move(slices->accumulator));
  for (Bytes& pair : slices->pairs) holder.hold(std::move(pair), 1);
}

void Coordinator::adopt(std::unique_ptr<SliceHolder> holder, std::map<std::size_t, Bytes> carries) {
  holder_ = std::move(holder);
  carries_ = std::move(carries);
}

}  // namespace cdgrab
