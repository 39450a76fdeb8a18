// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "cdgrab/balancer.hpp"
#include "cdgrab/dense_geometry.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/order.hpp"
#include "cdgrab/stopwatch.hpp"
#include "epoch.hpp"
#include "epoch_summary.hpp"
#include "kernels/kernels.hpp"
#include "row_record.hpp"
#include "stored.hpp"

namespace cdgrab {
namespace {

std::size_t checked_examples(std::size_t examples, const Spec& spec) {
  if (spec.distributed())
    throw UserError("Sampler", fmt::format("`{}` orders the examples of many workers; make a "
                                           "DistributedSampler for it (one worker on one rank will do)",
                                           print_spec(spec)));
  if (examples > kMaxExamples)
    throw UserError("Sampler", fmt::format("{} examples; at most {} are allowed: order groups of them with "
                                           "unit=",
                                           examples, kMaxExamples));
  const std::size_t units = unit_count(examples, spec.unit);
  if (spec.name == OrderName::kRecursivePair && spec.frozen && units % spec.block != 0)
    throw UserError("Sampler",
                    fmt::format("recursive-pair with block={} needs a number of units that it divides, "
                                "not {}; leave block= out, which takes any number",
                                spec.block, units));
  return examples;
}

void check_initial_order(std::span<const Index> order, const Epoch& epoch) {
  constexpr const char* kWhere = "SamplerOptions::initial_order";
  require_permutation(order, epoch.units(), kWhere);
  if (!epoch.short_unit_is_last(order))
    throw UserError(kWhere, fmt::format("ends with unit {}; unit {} is short and has the last place of every "
                                        "order: put it there",
                                        order.back(), epoch.units() - 1));
}

template <class T>
constexpr const char* kTypeName = std::is_same_v<T, float> ? "float32" : "float64";

}  // namespace

class Sampler::Impl {
 public:
  Impl(std::size_t examples, const Spec& spec, SamplerOptions options, std::unique_ptr<Geometry> geometry);

  void begin();
  std::span<const Index> next(std::size_t count);
  template <class T>
  void observe(const Rows<T>& rows, const std::vector<Index>& positions);
  void observe_block(const std::vector<Index>& positions);
  template <class T>
  void observe_block(const Rows<T>& whole, const std::vector<Index>& positions);
  void set_scores(std::span<const double> scores);
  void end_epoch();

  [[nodiscard]] EpochEnd epoch_end() const;
  /// Whether this epoch's vectors are balanced.
  [[nodiscard]] bool balances_now() const { return balancer_ && number_ % spec_.every == 0; }
  [[nodiscard]] std::vector<Index> next_order() const;
  [[nodiscard]] EpochReport report() const;
  [[nodiscard]] State state() const;
  void load(const State& state);
  /// The other's own geometry, with its registers as the state has them.
  void take_geometry(Impl& other, const State& state);
  void seek(const Position& position);
  void replay();
  [[nodiscard]] std::size_t block_size() const { return geometry_ == nullptr ? 0 : geometry_->block_size(); }

  std::size_t examples_;
  Spec spec_;
  SamplerOptions options_;
  std::unique_ptr<Order> order_;
  Epoch epoch_;
  std::uint64_t number_ = 0;  ///< of the epoch
  std::unique_ptr<Geometry> geometry_;
  bool own_geometry_;  ///< made here from the rows, rather than passed in
  EpochReport last_report_;
  std::optional<HerdingReport> herding_;
  std::vector<double> norms_;
  Timings timings_;
  std::size_t smallest_batch_ = 1;  ///< that the loader does not drop

 private:
  /// The way of rows into a dense geometry of our own.
  template <class T>
  struct DensePath {
    DenseGeometry<T>* geometry = nullptr;  ///< geometry_, once it exists and is of this type
    bool ready = false;                    ///< the sketch has been made, if there is one
    std::unique_ptr<Sketch<T>> sketch;
    std::vector<T> sketched;
  };

  template <class T>
  DensePath<T>& path() {
    if constexpr (std::is_same_v<T, float>)
      return float_path_;
    else
      return double_path_;
  }

  double* clock(double Timings::*part) { return options_.record_timings ? &(timings_.*part) : nullptr; }
  template <class T>
  void check_rows(const Rows<T>& rows);
  /// Of a vector, after others.
  void require_length(std::size_t dim) const;
  void require_given_geometry() const;
  template <class T>
  void prepare(std::size_t input_dim);
  template <class T>
  void set_block(const Rows<T>& rows);
  template <class T>
  void diagnose(const Rows<T>& rows, const std::vector<Index>& positions);
  template <class T>
  void load_dense(const State& state);
  void require_vectors(const State& state) const;
  void load_recorded(const State& state);
  [[nodiscard]] bool record_is_whole() const;
  void balance(const std::vector<Index>& positions);

  std::optional<Balancer> balancer_;
  std::optional<RowRecord> record_;
  std::vector<Index> initial_;
  std::vector<double> scores_;
  std::size_t input_dim_ = 0;  ///< of the rows, before any sketch; known once rows have been seen
  DensePath<float> float_path_;
  DensePath<double> double_path_;
  bool begun_ = false;
  bool resumed_ = false;             ///< the position was set from outside, and nothing was handed out since
  std::size_t observed_before_ = 0;  ///< units, in this epoch when its last pass began to hand out
};

Sampler::Impl::Impl(std::size_t examples, const Spec& spec, SamplerOptions options,
                    std::unique_ptr<Geometry> geometry)
    : examples_(checked_examples(examples, spec)),
      spec_(spec),
      options_(std::move(options)),
      order_(make_order(spec, unit_count(examples, spec.unit), examples % spec.unit != 0)),
      epoch_(examples, spec.unit, spec.levels(), !order_->permutes()),
      geometry_(std::move(geometry)),
      own_geometry_(geometry_ == nullptr) {
  if (!options_.initial_order.empty() || examples_ == 0) check_initial_order(options_.initial_order, epoch_);
  epoch_.start(options_.initial_order.empty() ? order_->first(options_.seed, epoch_.units())
                                              : options_.initial_order);
  if (order_->keeps_initial()) initial_.assign(epoch_.order().begin(), epoch_.order().end());
  options_.initial_order = {};
  if (spec_.balances()) {
    balancer_.emplace(spec_, options_.seed, epoch_.units());
    balancer_->begin_epoch(number_);
    if (geometry_ != nullptr) geometry_->declare(balancer_->registers());
  }
  if (order_->keeps_vectors() || options_.record_herding) record_.emplace(epoch_.units());
  if (options_.record_norms) norms_.assign(epoch_.units(), std::numeric_limits<double>::quiet_NaN());
}

void Sampler::Impl::begin() {
  const bool over = !epoch_.has_left(smallest_batch_);
  if (resumed_ && !over) return;
  if (epoch_.observed() > observed_before_ || (begun_ && over))
    end_epoch();
  else
    epoch_.restart();
  resumed_ = false;
  begun_ = true;
}

std::span<const Index> Sampler::Impl::next(std::size_t count) {
  begun_ = true;
  const std::span<const Index> handed = epoch_.next(count);
  if (handed.empty() || !resumed_) return handed;
  resumed_ = false;
  observed_before_ = epoch_.observed();
  return handed;
}

template <class T>
void Sampler::Impl::check_rows(const Rows<T>& rows) {
  using Other = std::conditional_t<std::is_same_v<T, float>, double, float>;
  if (!own_geometry_)
    throw UserError("Sampler::observe",
                    "rows for a sampler with a geometry of its own; put them there and call observe_block()");
  if (path<Other>().geometry != nullptr)
    throw UserError("Sampler::observe",
                    fmt::format("{} rows after {} ones; one type is allowed: convert them", kTypeName<T>,
                                kTypeName<Other>));
  if (path<T>().geometry != nullptr || (record_ && input_dim_ > 0)) require_length(rows.dim);
}

void Sampler::Impl::require_length(std::size_t dim) const {
  if (dim == input_dim_) return;
  throw UserError("Sampler::observe",
                  fmt::format("vectors of length {} after ones of length {}; every vector "
                              "must have the same length",
                              dim, input_dim_));
}

void Sampler::Impl::require_given_geometry() const {
  if (own_geometry_)
    throw UserError("Sampler::observe_block", "this sampler was given no geometry; call observe(rows)");
}

/// The geometry for rows of this length, and the sketch before it.
template <class T>
void Sampler::Impl::prepare(std::size_t input_dim) {
  DensePath<T>& way = path<T>();
  if (way.ready) return;
  auto sketch = make_sketch<T>(spec_.sketch, epoch_.units(), input_dim, options_.shapes, options_.seed);
  const std::size_t dim = sketch == nullptr ? input_dim : sketch->output_dim();
  if (way.geometry == nullptr) {
    auto geometry = std::make_unique<DenseGeometry<T>>(dim);
    geometry->declare(balancer_->registers());
    way.geometry = geometry.get();
    geometry_ = std::move(geometry);
  } else if (way.geometry->dim() != dim) {
    throw StateMismatch("Sampler::observe",
                        fmt::format("'geometry.dim' was {} in the loaded state and the sketch "
                                    "gives {}; pass the shapes it was made with",
                                    way.geometry->dim(), dim));
  }
  way.sketch = std::move(sketch);
  way.ready = true;
}

template <class T>
void Sampler::Impl::set_block(const Rows<T>& rows) {
  DensePath<T>& way = path<T>();
  const T* data = rows.data;
  if (way.sketch != nullptr) {
    const Stopwatch watch(clock(&Timings::sketch));
    way.sketched.resize(rows.count * way.sketch->output_dim());
    way.sketch->apply(rows.data, rows.count, way.sketched.data());
    data = way.sketched.data();
  }
  way.geometry->set_block(data, rows.count);
}

template <class T>
void Sampler::Impl::diagnose(const Rows<T>& rows, const std::vector<Index>& positions) {
  if (!record_ && norms_.empty()) return;
  const Stopwatch watch(clock(&Timings::diagnostics));
  for (std::size_t k = 0; k < rows.count; ++k) {
    const Index unit = epoch_.order()[positions[k]];
    const T* row = rows.data + k * rows.dim;
    if (record_) record_->put(unit, row, rows.dim);
    if (norms_.empty()) continue;
    norms_[unit] = std::sqrt(kernels::best<T>().dot(row, nullptr, row, rows.dim));
  }
}

template <class T>
void Sampler::Impl::observe(const Rows<T>& rows, const std::vector<Index>& positions) {
  check_rows(rows);
  if (rows.count == 0) return;
  if (balancer_) prepare<T>(rows.dim);
  input_dim_ = rows.dim;
  diagnose(rows, positions);
  if (balances_now()) set_block(rows);
  balance(positions);
}

template <class T>
void Sampler::Impl::observe_block(const Rows<T>& whole, const std::vector<Index>& positions) {
  require_given_geometry();
  if (record_ && input_dim_ > 0) require_length(whole.dim);
  input_dim_ = whole.dim;
  diagnose(whole, positions);
  balance(positions);
}

void Sampler::Impl::observe_block(const std::vector<Index>& positions) {
  require_given_geometry();
  if (record_)
    throw UserError("Sampler::observe_block",
                    "a greedy order and the herding bound need the vectors "
                    "themselves; call observe(rows) on a sampler without a geometry");
  balance(positions);
}

void Sampler::Impl::balance(const std::vector<Index>& positions) {
  const Stopwatch watch(clock(&Timings::balance));
  if (balances_now()) {
    balancer_->observe(*geometry_, positions, epoch_.codes());
  } else {
    for (const Index position : positions) epoch_.codes()[position] = leaf_code(0);
  }
  epoch_.count_observed(positions);
}

void Sampler::Impl::set_scores(std::span<const double> scores) {
  if (spec_.name != OrderName::kScore)
    throw UserError("Sampler::set_scores",
                    fmt::format("scores for the order '{}'; only 'score' takes them", print_spec(spec_)));
  if (scores.size() != epoch_.units())
    throw UserError("Sampler::set_scores",
                    fmt::format("{} scores for {} units; one each is needed", scores.size(), epoch_.units()));
  const auto bad = std::find_if(scores.begin(), scores.end(), [](double s) { return !std::isfinite(s); });
  if (bad != scores.end())
    throw UserError(
        "Sampler::set_scores",
        fmt::format("the score of unit {} is {}; finite numbers are allowed", bad - scores.begin(), *bad));
  scores_.assign(scores.begin(), scores.end());
}

EpochEnd Sampler::Impl::epoch_end() const {
  return {options_.seed,
          number_ + 1,
          initial_,
          epoch_.order(),
          epoch_.codes(),
          scores_,
          record_ ? &*record_ : nullptr};
}

std::vector<Index> Sampler::Impl::next_order() const {
  if (balancer_ && !balances_now()) return {epoch_.order().begin(), epoch_.order().end()};
  return order_->next(epoch_end());
}

EpochReport Sampler::Impl::report() const { return report_of(epoch_, number_); }

/// Not if the epoch was begun without it.
bool Sampler::Impl::record_is_whole() const {
  for (std::size_t t = 0; t < epoch_.units(); ++t)
    if (epoch_.codes()[t] != kUnobserved && !record_->has(epoch_.order()[t])) return false;
  return true;
}

void Sampler::Impl::end_epoch() {
  last_report_ = report();
  std::vector<Index> next;
  {
    const Stopwatch watch(clock(&Timings::order));
    next = next_order();
  }
  herding_.reset();
  if (record_) {
    const Stopwatch watch(clock(&Timings::diagnostics));
    if (options_.record_herding && record_is_whole())
      herding_ = {record_->bound(epoch_.order()), record_->bound(next)};
    record_->clear();
  }
  if (balances_now() && geometry_ != nullptr) balancer_->end_epoch(*geometry_);
  epoch_.start(std::move(next));
  ++number_;
  if (balancer_) balancer_->begin_epoch(number_);
  begun_ = false;
  resumed_ = false;
  observed_before_ = 0;
}

void Sampler::Impl::seek(const Position& position) {
  if (position.epoch != number_)
    throw UserError("Sampler::seek",
                    fmt::format("epoch {} while epoch {} is under way; load the state of that "
                                "epoch first",
                                position.epoch, number_));
  if (position.handed_out > examples_)
    throw UserError("Sampler::seek", fmt::format("{} examples handed out of {}; at most all are",
                                                 position.handed_out, examples_));
  epoch_.seek(position.handed_out);
  resumed_ = true;
  begun_ = true;
}

void Sampler::Impl::replay() {
  epoch_.replay();
  resumed_ = true;
  begun_ = true;
}

State Sampler::Impl::state() const {
  State state;
  state.set("spec", print_spec(spec_));
  state.set("examples", static_cast<std::int64_t>(examples_));
  state.set("seed", static_cast<std::int64_t>(options_.seed));
  state.set("epoch", static_cast<std::int64_t>(number_));
  state.set("begun", std::int64_t{begun_ ? 1 : 0});
  epoch_.save(state);
  if (order_->keeps_initial()) state.set("order.initial", std::span<const Index>(initial_));
  if (!scores_.empty()) state.set("order.scores", std::span<const double>(scores_));
  if (record_) record_->save(state);
  if (!norms_.empty()) state.set("norms", std::span<const double>(norms_));
  if (balancer_) balancer_->save(state);
  if (balancer_ && geometry_ != nullptr) {
    state.set("input_dim", static_cast<std::int64_t>(input_dim_));
    geometry_->save(state);
  }
  return state;
}

namespace {

template <class Value>
void require_same(std::string_view key, const Value& stored, const Value& here) {
  if (stored == here) return;
  throw StateMismatch("Sampler::load",
                      fmt::format("'{}' is '{}' in the state and '{}' here; load it into a sampler "
                                  "made with the same arguments",
                                  key, stored, here));
}

}  // namespace

template <class T>
void Sampler::Impl::load_dense(const State& state) {
  auto geometry = std::make_unique<DenseGeometry<T>>(stored_count(state, "geometry.dim", "Sampler::load"));
  geometry->declare(balancer_->registers());
  geometry->load(state);
  path<T>().geometry = geometry.get();
  geometry_ = std::move(geometry);
  input_dim_ = stored_count(state, "input_dim", "Sampler::load");
  if (spec_.sketch.kind == SketchKind::kNone && input_dim_ != path<T>().geometry->dim())
    throw StateMismatch("Sampler::load",
                        fmt::format("'geometry.dim' is {} and 'input_dim' is {}; without a sketch they are "
                                    "the same",
                                    path<T>().geometry->dim(), input_dim_));
  if (record_ && record_->dim() != 0 && record_->dim() != input_dim_)
    throw StateMismatch("Sampler::load",
                        fmt::format("'record.dim' is {} and 'input_dim' is {}; they are the same",
                                    record_->dim(), input_dim_));
}

/// Diagnostics that the state was made without begin here; what the order itself needs is never missing.
void Sampler::Impl::load_recorded(const State& state) {
  if (order_->keeps_vectors() || (record_ && state.contains("record.dim"))) {
    record_->load(state);
    input_dim_ = record_->dim();
  }
  if (!norms_.empty() && state.contains("norms")) norms_ = state.elements<double>("norms", epoch_.units());
}

/// What waits does so in a register, and goes with the epoch.
void Sampler::Impl::require_vectors(const State& state) const {
  if (!balancer_->waits()) return;
  if (!state.contains("input_dim"))
    throw StateMismatch("Sampler::load",
                        "there is no 'input_dim', and 'balancer.waiting' speaks of a vector; load a state "
                        "that cdgrab wrote");
  if (!balances_now())
    throw StateMismatch("Sampler::load",
                        fmt::format("'epoch' is {}, in which every={} looks at nothing, and "
                                    "'balancer.waiting' speaks of a vector; load a state that cdgrab wrote",
                                    number_, spec_.every));
}

/// Into a sampler just made: what throws leaves that one behind, and no other.
void Sampler::Impl::load(const State& state) {
  require_same("spec", state.text("spec"), print_spec(spec_));
  require_same("examples", stored_count(state, "examples", "Sampler::load"), std::uint64_t{examples_});
  number_ = stored_count(state, "epoch", "Sampler::load");
  begun_ = state.integer("begun") != 0;
  epoch_.load(state);
  if (order_->keeps_initial()) {
    initial_ = state.elements<Index>("order.initial", epoch_.units());
    if (!is_permutation(initial_) || !epoch_.short_unit_is_last(initial_))
      throw StateMismatch("Sampler::load", "'order.initial' is not a permutation with a short unit last");
  }
  if (state.contains("order.scores")) set_scores(state.elements<double>("order.scores", epoch_.units()));
  load_recorded(state);
  if (balancer_) {
    balancer_->begin_epoch(number_);
    balancer_->load(state, std::as_const(epoch_).codes());
    require_vectors(state);
    if (state.contains("input_dim") && own_geometry_) {
      if (state.array(balancer_->registers().front()).dtype == DType::kF32)
        load_dense<float>(state);
      else
        load_dense<double>(state);
    }
  }
  resumed_ = true;
}

void Sampler::Impl::take_geometry(Impl& other, const State& state) {
  if (state.contains("input_dim")) {
    other.geometry_->load(state);
  } else if (balancer_) {
    for (Register r = 0; r < balancer_->registers().size(); ++r) other.geometry_->clear(r);
  }
  geometry_ = std::move(other.geometry_);
}

Sampler::Sampler(std::size_t examples, const Spec& spec, SamplerOptions options,
                 std::unique_ptr<Geometry> geometry)
    : impl_(std::make_unique<Impl>(examples, spec, std::move(options), std::move(geometry))) {}

Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;

void Sampler::begin() { impl_->begin(); }
void Sampler::drop_batches_below(std::size_t examples) {
  impl_->smallest_batch_ = std::max<std::size_t>(examples, 1);
}

std::span<const Index> Sampler::next(std::size_t count) { return impl_->next(count); }

template <class T>
void Sampler::observe(const Rows<T>& rows) {
  impl_->observe(rows, impl_->epoch_.oldest(rows.count));
}

template <class T>
void Sampler::observe(const Rows<T>& rows, std::span<const Index> examples) {
  if (examples.size() != rows.count)
    throw UserError("Sampler::observe",
                    fmt::format("{} vectors and {} examples; one example per vector is needed", rows.count,
                                examples.size()));
  impl_->observe(rows, impl_->epoch_.named(examples));
}

template void Sampler::observe<float>(const Rows<float>&);
template void Sampler::observe<double>(const Rows<double>&);
template void Sampler::observe<float>(const Rows<float>&, std::span<const Index>);
template void Sampler::observe<double>(const Rows<double>&, std::span<const Index>);

void Sampler::observe_block() { impl_->observe_block(impl_->epoch_.oldest(impl_->block_size())); }

void Sampler::observe_block(std::span<const Index> examples) {
  if (impl_->balances_now() && examples.size() != impl_->block_size())
    throw UserError("Sampler::observe_block",
                    fmt::format("a block of {} rows and {} examples; one example per row is needed",
                                impl_->block_size(), examples.size()));
  impl_->observe_block(impl_->epoch_.named(examples));
}

template <class T>
void Sampler::observe_block(const Rows<T>& whole, std::span<const Index> examples) {
  impl_->observe_block(whole, impl_->epoch_.named(examples));
}

template void Sampler::observe_block<float>(const Rows<float>&, std::span<const Index>);
template void Sampler::observe_block<double>(const Rows<double>&, std::span<const Index>);

void Sampler::set_scores(std::span<const double> scores) { impl_->set_scores(scores); }
void Sampler::end_epoch() { impl_->end_epoch(); }

std::size_t Sampler::examples() const { return impl_->examples_; }
std::size_t Sampler::units() const { return impl_->epoch_.units(); }
const Spec& Sampler::spec() const { return impl_->spec_; }
std::uint64_t Sampler::seed() const { return impl_->options_.seed; }
std::uint64_t Sampler::epoch() const { return impl_->number_; }
bool Sampler::needs_vectors() const {
  return impl_->balances_now() || impl_->spec_.name == OrderName::kGreedy;
}
std::span<const Index> Sampler::order() const { return std::as_const(impl_->epoch_).order(); }
std::vector<Index> Sampler::next_order() const { return impl_->next_order(); }
std::size_t Sampler::outstanding() const { return impl_->epoch_.outstanding(); }

std::vector<Index> Sampler::upcoming(std::size_t count) const { return impl_->epoch_.upcoming(count); }

Position Sampler::trained_position() const {
  return trained_position_of(impl_->epoch_, position(), impl_->spec_.balances());
}

void Sampler::check_outstanding(std::span<const Index> examples) {
  static_cast<void>(impl_->epoch_.named(examples));
}

std::vector<Index> Sampler::oldest_outstanding(std::size_t skip, std::size_t count) const {
  const std::vector<Index> positions = impl_->epoch_.oldest(skip + count);
  std::vector<Index> examples;
  for (std::size_t k = skip; k < positions.size(); ++k)
    examples.push_back(static_cast<Index>(order()[positions[k]] * impl_->spec_.unit));
  return examples;
}

Geometry* Sampler::geometry() { return impl_->geometry_.get(); }
EpochReport Sampler::report() const { return impl_->report(); }
EpochReport Sampler::last_report() const { return impl_->last_report_; }
const std::optional<HerdingReport>& Sampler::herding() const { return impl_->herding_; }
std::span<const double> Sampler::norms() const { return impl_->norms_; }
Timings Sampler::timings() const { return impl_->timings_; }
Position Sampler::position() const { return {impl_->number_, impl_->epoch_.handed_out()}; }
void Sampler::seek(const Position& position) { impl_->seek(position); }
void Sampler::replay() { impl_->replay(); }
State Sampler::state() const { return impl_->state(); }

void Sampler::load(const State& state) {
  SamplerOptions options = impl_->options_;
  options.seed = static_cast<std::uint64_t>(state.integer("seed"));
  auto fresh = std::make_unique<Impl>(impl_->examples_, impl_->spec_, std::move(options), nullptr);
  fresh->own_geometry_ = impl_->own_geometry_;
  fresh->load(state);
  if (!impl_->own_geometry_) fresh->take_geometry(*impl_, state);
  fresh->timings_ = impl_->timings_;
  fresh->smallest_batch_ = impl_->smallest_batch_;
  impl_ = std::move(fresh);
}

}  // namespace cdgrab
