// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cdgrab/error.hpp"
#include "distributed_sampler/impl.hpp"
#include "stored.hpp"

namespace cdgrab {
namespace {

constexpr const char* kLoad = "DistributedSampler::load";

std::string worker_key(std::size_t worker) { return fmt::format("worker.{}", worker); }

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

}  // namespace

/// What the other ranks do not know.
State DistributedSampler::Impl::own_words() const {
  State state;
  state.set("begun", std::int64_t{begun_ ? 1 : 0});
  if (type_) {
    state.set("input_dim", static_cast<std::int64_t>(input_dim_));
    state.set("input_dtype", std::string(dtype_name(*type_)));
  }
  if (coordinates() && !own_geometry_) {
    State words;
    sender_->save(words);
    state.set_part("sender", words);
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
    outgoing_.arrivals =
        decode_message(state.array("outgoing.arrivals").bytes, coordinator_->most_in_a_message()).arrivals;
    if (!coordinator_->possible(outgoing_.arrivals, communicator_->rank()))
      throw CommunicationError(kLoad, "no units of workers that are hosted here");
  } catch (const CommunicationError&) {
    throw StateMismatch(kLoad, "'outgoing.arrivals' cannot be read; this is not a state that cdgrab wrote");
  }
  if (!state.contains("outgoing.0")) return;
  for (std::size_t r = 0; r < communicator_->ranks(); ++r) {
    const Array& packed = state.array(fmt::format("outgoing.{}", r));
    outgoing_.packed.emplace_back(packed.bytes);
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
  same("examples", stored_count(state, "examples", kLoad), std::uint64_t{shares_.examples()});
  if (!state.contains("rank")) return;
  same("rank", stored_count(state, "rank", kLoad), std::uint64_t{communicator_->rank()});
  same("ranks", stored_count(state, "ranks", kLoad), std::uint64_t{communicator_->ranks()});
  same("workers", stored_count(state, "workers", kLoad), std::uint64_t{shares_.workers()});
}

LoadReport DistributedSampler::Impl::load(const State& state, Impl& old) {
  require_loadable(state);
  const Shares before = Shares::load(state);
  const bool local = state.contains("rank");
  const bool same_shares = before == shares_;
  if (local && !same_shares)
    throw StateMismatch(kLoad, "a state of one rank with other shares; load one that save() made");
  number_ = stored_count(state, "epoch", kLoad);
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
  resumed_ = true;
  resumed_over_ = std::all_of(epochs_.begin(), epochs_.end(),
                              [this](const Epoch& epoch) { return !epoch.has_left(smallest_batch_); });
  if (local) resumed_over_ = state.integer("left") == 0;
  load_vectors(state, same_shares, old);  // takes from the old sampler: nothing after it may refuse the state
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
    // One that was visited and has no sign is done with, as one whose vector is of no use: nobody waits for
    // it.
    for (Place& unit : units) {
      if (!unit.visited) unit.code = kUnobserved;
      if (unit.visited && unit.code == kUnobserved) unit.code = kNotFinite;
    }
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
    input_dim_ = stored_count(state, "input_dim", kLoad);
    type_ = stored_type(state, "input_dtype");
  }
  if (coordinates()) load_slices(state, same_shares, old);
  if (independent()) load_alone(state, same_shares, old);
}

/// `cd-pair`: the accumulator, and with the same shares what waits.
void DistributedSampler::Impl::load_slices(const State& state, bool same_shares, Impl& old) {
  const bool stored = state.contains("geometry.dim");
  if (!stored && own_geometry_) return require_waiting(state, same_shares, std::nullopt);
  std::unique_ptr<SliceHolder> made;
  SliceHolder* holder = old.coordinator_->holder();
  if (own_geometry_) {
    made = make_slices(state);
    holder = made.get();
  } else if (stored) {
    const State words = state.part("geometry");
    holder->load(words);
    old.sender_->load(state.contains("rank") ? state.part("sender") : words);
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
  require_waiting(state, same_shares, slices);
  // All that can throw is before the taking: a refused state must not leave the old sampler without them.
  SliceSender& sender = own_geometry_ ? *sender_ : *old.sender_;
  for (const auto& [number, carry] : carries) sender.set_carry(number, carry);
  if (holder != nullptr) Coordinator::fill(*holder, slices);
  if (!own_geometry_) {
    made = old.coordinator_->take_holder();
    sender_ = std::move(old.sender_);
  }
  if (slices || !own_geometry_)
    coordinator_->adopt(std::move(made),
                        slices ? std::move(slices->carries) : std::map<std::size_t, Bytes>());
}

void DistributedSampler::Impl::require_dim(std::size_t dim) const {
  if (type_ && (spec_.sketch.kind != SketchKind::kNone || dim == input_dim_)) return;
  throw StateMismatch(kLoad, fmt::format("'geometry.dim' is {} and 'input_dim' is {}; without a sketch they "
                                         "are the same: this is not a state that cdgrab wrote",
                                         dim, input_dim_));
}

/// No holder for a state of one rank before its first round, which has nothing for it.
std::unique_ptr<SliceHolder> DistributedSampler::Impl::make_slices(const State& state) {
  const std::size_t dim = stored_count(state, "geometry.dim", kLoad);
  const DType type = stored_type(state, "geometry.dtype");
  const bool local = state.contains("rank");
  if (type_) require_dim(dim);  // another rank's vectors may be all there are
  outgoing_.type = type;
  outgoing_.dim = dim;
  const std::size_t part = local ? slice_of(dim, communicator_->rank(), holders(dim)).size() : dim;
  const bool known = !local || state.contains("slice.accumulator");
  if (known) {
    const char* const key = local ? "slice.accumulator" : "accumulator";
    const std::size_t bytes = state.array(key).bytes.size();
    if (bytes % dtype_size(type) != 0 || bytes / dtype_size(type) != part)
      throw StateMismatch(kLoad,
                          fmt::format("'{}' has {} bytes, of vectors of {} numbers of {}; load a state "
                                      "that cdgrab wrote",
                                      key, bytes, dim, dtype_name(type)));
  }
  std::unique_ptr<SliceHolder> holder;
  const auto dense = [&]<class T>(T) {
    auto sender = std::make_unique<DenseSliceSender<T>>(dim, communicator_->ranks(), holders(dim));
    path<T>().sender = sender.get();
    sender_ = std::move(sender);
    if (known) holder = std::make_unique<DenseSliceHolder<T>>(dim, communicator_->rank(), holders(dim));
  };
  if (type == DType::kF32)
    dense(float{});
  else
    dense(double{});
  return holder;
}

void DistributedSampler::Impl::require_waiting(const State& state, bool same_shares,
                                               const std::optional<Coordinator::Slices>& slices) const {
  const auto [lanes, arriving] = coordinator_->after(outgoing_.arrivals);
  const bool sliced = slices && !slices->carries.empty();
  for (std::size_t w = hosted_.begin; w < hosted_.end && same_shares && !sliced; ++w)
    if (lanes.carry(w) != workers_[w - hosted_.begin].waiting)
      throw StateMismatch(kLoad, fmt::format("'{}' and 'lanes.carries' speak of different units; this is not "
                                             "a state that cdgrab wrote",
                                             state.name(worker_key(w) + ".waiting")));
  if (own_geometry_) require_lengths(slices, lanes.waiting().size() - arriving, arriving);
}

void DistributedSampler::Impl::require_lengths(const std::optional<Coordinator::Slices>& slices,
                                               std::size_t waiting, std::size_t arriving) const {
  const auto part = [&](std::size_t rank) {
    if (!outgoing_.type) return std::size_t{0};
    return slice_of(outgoing_.dim, rank, holders(outgoing_.dim)).size() * dtype_size(*outgoing_.type);
  };
  const auto fits = [&](const Bytes& bytes) { return bytes.size() == part(communicator_->rank()); };
  bool whole = outgoing_.type ? true : waiting + arriving == 0;
  if (slices) {
    whole = whole && std::all_of(slices->pairs.begin(), slices->pairs.end(), fits);
    for (const auto& [worker, carry] : slices->carries) whole = whole && fits(carry);
  } else {
    whole = whole && waiting == 0;
  }
  for (std::size_t r = 0; r < communicator_->ranks(); ++r) {
    const std::size_t packed = r < outgoing_.packed.size() ? outgoing_.packed[r].size() : 0;
    whole = whole && (arriving == 0 ? packed == 0 : packed % arriving == 0 && packed / arriving == part(r));
  }
  if (!whole)
    throw StateMismatch(kLoad,
                        "the vectors that wait have not the lengths that its words ask for; this is not a "
                        "state that cdgrab wrote");
}

void DistributedSampler::Impl::load_waiting(const State& state, std::size_t worker) {
  const std::string key = worker_key(worker) + ".waiting";
  const std::int64_t position = state.integer(key);
  if (position < 0) return;
  if (static_cast<std::uint64_t>(position) >= epochs_[worker].units())
    throw StateMismatch(kLoad,
                        fmt::format("'{}' is {}, of {} units", key, position, epochs_[worker].units()));
  if (epochs_[worker].codes()[static_cast<std::size_t>(position)] != kMiddle)
    throw StateMismatch(kLoad, fmt::format("'{}' is {}, whose code is not that of a unit that waits; this is "
                                           "not a state that cdgrab wrote",
                                           key, position));
  here(worker).waiting = static_cast<Index>(position);
}

/// `id-pair`: with the same shares, each worker's own balancer and registers.
void DistributedSampler::Impl::load_alone(const State& state, bool same_shares, Impl& old) {
  for (std::size_t w = hosted_.begin; w < hosted_.end && same_shares; ++w) {
    const State words = state.part(worker_key(w));
    load_waiting(state, w);
    here(w).balancer->load(words, std::as_const(epochs_[w]).codes());
    if (!own_geometry_) continue;
    if (!words.contains("geometry.dim")) {
      if (!here(w).balancer->waits()) continue;
      throw StateMismatch(kLoad,
                          fmt::format("there is no '{}', and a vector of worker {} waits; load a state "
                                      "that cdgrab wrote",
                                      words.name("geometry.dim"), w));
    }
    const std::size_t dim = stored_count(words, "geometry.dim", kLoad);
    require_dim(dim);
    if (stored_type(state, "input_dtype") == DType::kF32)
      make_geometry<float>(w, dim);
    else
      make_geometry<double>(w, dim);
    here(w).geometry->load(words);
  }
  for (std::size_t w = hosted_.begin; w < hosted_.end && !own_geometry_; ++w) {
    std::unique_ptr<Geometry>& geometry = old.here(w).geometry;
    const State words = state.part(worker_key(w));
    if (same_shares) {
      geometry->load(words);
    } else {
      for (Register r = 0; r < here(w).balancer->registers().size(); ++r) geometry->clear(r);
    }
  }
  for (std::size_t w = hosted_.begin; w < hosted_.end && !own_geometry_; ++w)
    here(w).geometry = std::move(old.here(w).geometry);
}

}  // namespace cdgrab
