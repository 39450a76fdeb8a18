// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/torch/distributed_sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/stopwatch.hpp"
#include "ghost_geometry.hpp"
#include "observer.hpp"
#include "sketched_geometry.hpp"
#include "sliced_ghost_geometry.hpp"

namespace cdgrab::torch {
namespace {

/// What becomes of the vectors of a worker.
enum class Way {
  kUnseen,    ///< nothing
  kRows,      ///< rows in memory, for the core
  kSketched,  ///< the same, sketched as they are read
  kLocal,     ///< a ghost geometry for each hosted worker
  kSliced,    ///< to all ranks
};

Way way_of(const Spec& spec) {
  if (!spec.balances()) return Way::kUnseen;
  if (spec.unit > 1 || (spec.sketch.kind != SketchKind::kNone && !Sketcher::makes(spec.sketch.kind)))
    return Way::kRows;
  if (spec.name == OrderName::kIndependentPair) return Way::kLocal;
  if (spec.sketch.kind == SketchKind::kPca)
    throw UserError(
        "DistributedSampler",
        fmt::format("`{}`: each rank would learn directions of its own, and one accumulator needs "
                    "the same on all; use sketch=kron:{}, or id-pair",
                    print_spec(spec), spec.sketch.size));
  return spec.sketch.kind == SketchKind::kKron ? Way::kSketched : Way::kSliced;
}

Communicator& checked(const std::shared_ptr<Communicator>& communicator) {
  if (communicator == nullptr)
    throw UserError("DistributedSampler", "no communicator; a SelfCommunicator is one rank alone");
  return *communicator;
}

Sketcher sketcher_of(const Spec& spec, std::size_t examples, const DistributedOptions& options) {
  return {spec.sketch, examples, options.shapes, options.seed};
}

DistributedOptions with_geometry(DistributedOptions options, Way way, const Spec& spec,
                                 std::size_t examples) {
  if (options.local_geometry)
    throw UserError("DistributedSampler",
                    "a local_geometry; this sampler brings its own: leave it empty, or use "
                    "cdgrab::DistributedSampler");
  options.sketched = way == Way::kSketched;
  if (way == Way::kLocal && spec.sketch.kind != SketchKind::kNone)
    options.local_geometry = [sketcher = sketcher_of(spec, examples, options)](std::size_t /*worker*/) {
      return std::make_unique<SketchedGeometry>(sketcher);
    };
  else if (way == Way::kLocal)
    options.local_geometry = [](std::size_t /*worker*/) { return std::make_unique<GhostGeometry>(); };
  return options;
}

SlicedGeometry sliced_geometry(const Communicator& communicator, Way way) {
  if (way != Way::kSliced) return {};
  return {std::make_unique<GhostSliceSender>(communicator.ranks()),
          std::make_unique<GhostSliceHolder>(communicator.rank(), communicator.ranks())};
}

/// All numbers of the tensors, one after the other, in memory.
Tensor flat(const std::vector<Tensor>& tensors, at::ScalarType dtype) {
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) parts.push_back(tensor.detach().to(at::kCPU, dtype).reshape({-1}));
  return parts.empty() ? at::empty({0}, dtype) : at::cat(parts);
}

template <class T>
void average_as(cdgrab::DistributedSampler& core, const std::vector<Tensor>& rows,
                const std::vector<double>& weights, Tensor& mean) {
  std::vector<std::span<const T>> gradients;
  for (const Tensor& row : rows)
    gradients.emplace_back(row.const_data_ptr<T>(), static_cast<std::size_t>(row.numel()));
  core.average<T>(gradients, weights, {mean.data_ptr<T>(), static_cast<std::size_t>(mean.numel())});
}

}  // namespace

class DistributedSampler::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(Shares shares, const Spec& spec, std::shared_ptr<Communicator> communicator,
       DistributedOptions options)
      : way_(way_of(spec)),
        communicator_(std::move(communicator)),
        shapes_(options.shapes),
        sketcher_(sketcher_of(spec, shares.examples(), options)),
        options_(with_geometry(std::move(options), way_, spec, shares.examples())),
        core_(std::move(shares), spec, checked(communicator_), std::move(options_),
              sliced_geometry(*communicator_, way_)),
        deposited_(core_.hosted()) {
    for (std::size_t h = 0; h < core_.hosted(); ++h) backwards_.push_back(std::make_shared<Backwards>(turn_));
  }

  /// The worker meant: hosted here, and the only one if it is not named.
  [[nodiscard]] std::size_t worker(Worker named, const char* where) const;
  [[nodiscard]] Backwards& backwards(std::size_t worker) {
    return *backwards_[worker - core_.first_worker()];
  }
  [[nodiscard]] std::vector<Index> oldest(std::size_t worker, std::size_t count);
  void observe(std::size_t worker, const Tensor& loss, std::vector<Index> examples,
               const ObserveOptions& options);
  void deposit(std::size_t worker, Observed&& observed, const std::vector<Index>& examples,
               const ParameterSet& parameters);
  void average(const std::vector<std::vector<Tensor>>& gradients, const std::vector<double>& examples,
               const std::vector<Tensor>& mean);
  void step();
  /// Backwards under way belong to nobody, and no round is due.
  void forget();

  Observed given(std::size_t worker, const std::vector<Tensor>& rows, const char* where) {
    Sketcher* const sketches = sketcher(worker);
    if (sketches == nullptr) return given_.observed(rows, where);
    return sketch_all(*sketches, core_.epoch(), given_.observed(cut_by_shapes(rows, shapes_, where), where));
  }

  Way way_;
  std::shared_ptr<Communicator> communicator_;
  std::vector<Shape> shapes_;
  Sketcher sketcher_;           ///< of Way::kSketched
  DistributedOptions options_;  ///< on their way to core_
  cdgrab::DistributedSampler core_;
  std::size_t batch_size_ = 0;  ///< of the loader; 0: not known
  std::size_t smallest_batch_ = 1;
  bool step_after_backward_ = false;
  std::shared_ptr<Turn> turn_ = std::make_shared<Turn>();
  std::vector<std::shared_ptr<Backwards>> backwards_;  ///< per hosted worker
  double seconds_ = 0.0;

 private:
  /// Null: none is applied to what a worker observes.
  [[nodiscard]] Sketcher* sketcher(std::size_t worker);
  [[nodiscard]] Shortening shortening(std::size_t worker);
  void put(std::size_t worker, Observed&& observed, const std::vector<Index>& examples,
           const ParameterSet& parameters);
  void arrived(std::size_t worker);
  [[nodiscard]] bool through(std::size_t worker) const;

  GivenVectors given_;
  RowMatrix rows_;
  std::vector<bool> deposited_;  ///< per hosted worker: since the last round
};

std::size_t DistributedSampler::Impl::worker(Worker named, const char* where) const {
  const std::size_t first = core_.first_worker();
  const std::size_t count = core_.hosted();
  if (named && *named >= first && *named < first + count) return *named;
  if (!named && count == 1) return first;
  throw UserError(where,
                  fmt::format("worker {} on rank {} of {}, which hosts {} workers from {} on; name one "
                              "of these",
                              named ? fmt::format("{}", *named) : "without a number", communicator_->rank(),
                              communicator_->ranks(), count, first));
}

std::vector<Index> DistributedSampler::Impl::oldest(std::size_t worker, std::size_t count) {
  return backwards(worker).oldest(count,
                                  [&](std::size_t all) { return core_.oldest_outstanding(worker, 0, all); });
}

void DistributedSampler::Impl::observe(std::size_t worker, const Tensor& loss, std::vector<Index> examples,
                                       const ObserveOptions& options) {
  require_examples(core_.spec().unit, "DistributedSampler::observe");
  if (way_ == Way::kUnseen) return deposit(worker, {}, examples, options.parameters);
  const Stopwatch watch(&seconds_);
  Observation::Way way{
      .fused = core_.spec().fused, .sums = way_ == Way::kLocal, .shortening = shortening(worker)};
  if (way_ == Way::kSliced)
    way.forms = [ranks = communicator_->ranks()](const Contribution& c) { return travels_as_rows(c, ranks); };
  backwards(worker).wait_for(
      loss, std::move(examples), options,
      [weak = weak_from_this(), worker, parameters = options.parameters](Observed&& observed,
                                                                         const std::vector<Index>& named) {
        if (const auto self = weak.lock()) self->deposit(worker, std::move(observed), named, parameters);
      },
      std::move(way));
}

Sketcher* DistributedSampler::Impl::sketcher(std::size_t worker) {
  if (way_ == Way::kSketched) return &sketcher_;
  if (way_ != Way::kLocal || core_.spec().sketch.kind == SketchKind::kNone) return nullptr;
  return &static_cast<SketchedGeometry*>(core_.geometry(worker))->sketcher();
}

Shortening DistributedSampler::Impl::shortening(std::size_t worker) {
  if (sketcher(worker) == nullptr) return {};
  const auto of_worker = [weak = weak_from_this(), worker]() -> Sketcher* {
    const auto self = weak.lock();
    return self == nullptr ? nullptr : self->sketcher(worker);
  };
  return shortening_by(of_worker, core_.epoch());
}

void DistributedSampler::Impl::deposit(std::size_t worker, Observed&& observed,
                                       const std::vector<Index>& examples, const ParameterSet& parameters) {
  seconds_ += observed.seconds;
  {
    const Stopwatch watch(&seconds_);
    put(worker, std::move(observed), examples, parameters);
  }
  arrived(worker);
}

void DistributedSampler::Impl::put(std::size_t worker, Observed&& observed,
                                   const std::vector<Index>& examples, const ParameterSet& parameters) {
  if (way_ == Way::kRows || way_ == Way::kSketched) {
    const Tensor matrix = rows_.of(observed, "DistributedSampler::observe");
    return visit_rows(matrix, [&](const auto& rows) { core_.deposit(worker, rows, examples); });
  }
  if (way_ == Way::kLocal)
    static_cast<GhostGeometry*>(core_.geometry(worker))->set_block(std::move(observed));
  if (way_ == Way::kSliced)
    static_cast<GhostSliceSender*>(core_.sender())->set_block(std::move(observed), parameters);
  core_.deposit_block(worker, examples);
}

bool DistributedSampler::Impl::through(std::size_t worker) const {
  return core_.outstanding(worker) == 0 && core_.upcoming(worker, smallest_batch_).size() < smallest_batch_;
}

void DistributedSampler::Impl::arrived(std::size_t worker) {
  deposited_[worker - core_.first_worker()] = true;
  if (!step_after_backward_) return;
  for (std::size_t h = 0; h < deposited_.size(); ++h)
    if (!deposited_[h] && !through(core_.first_worker() + h)) return;
  step();
}

void DistributedSampler::Impl::step() {
  const Stopwatch watch(&seconds_);
  deposited_.assign(deposited_.size(), false);
  core_.step();
}

void DistributedSampler::Impl::forget() {
  deposited_.assign(deposited_.size(), false);
  for (const auto& each : backwards_) each->forget();
}

void DistributedSampler::Impl::average(const std::vector<std::vector<Tensor>>& gradients,
                                       const std::vector<double>& examples, const std::vector<Tensor>& mean) {
  if (way_ == Way::kSliced || way_ == Way::kSketched || way_ == Way::kLocal)
    throw UserError("DistributedSampler::average",
                    fmt::format("`{}` balances the gradients of single examples, and an average has one "
                                "vector per unit; write unit= with the examples of a worker's step",
                                print_spec(core_.spec())));
  const at::NoGradGuard no_grad;
  const bool wide =
      std::any_of(mean.begin(), mean.end(), [](const Tensor& t) { return t.scalar_type() == at::kDouble; });
  const at::ScalarType dtype = wide ? at::kDouble : at::kFloat;
  std::vector<Tensor> rows;
  for (const auto& each : gradients) rows.push_back(flat(each, dtype));
  Tensor all = flat(mean, dtype).clone();
  deposited_.assign(deposited_.size(), false);
  if (wide)
    average_as<double>(core_, rows, examples, all);
  else
    average_as<float>(core_, rows, examples, all);
  std::int64_t begin = 0;
  for (const Tensor& to : mean) {
    to.detach().copy_(all.narrow(0, begin, to.numel()).view(to.sizes()));
    begin += to.numel();
  }
}

// ---------------------------------------------------------------------------------------------------------

DistributedSampler::DistributedSampler(Shares shares, std::string_view spec,
                                       std::shared_ptr<Communicator> communicator, DistributedOptions options)
    : impl_(std::make_shared<Impl>(std::move(shares), parse_spec(spec), std::move(communicator),
                                   std::move(options))) {}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  const std::size_t size = impl_->core_.shares().size(worker());
  if (new_size && *new_size != size)
    throw UserError(
        "DistributedSampler::reset",
        fmt::format("a new size of {}; this worker has {} examples: make another", *new_size, size));
  begin();
}

void DistributedSampler::begin() {
  const std::uint64_t before = impl_->core_.epoch();
  impl_->core_.begin();
  if (impl_->core_.epoch() != before) impl_->forget();
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  auto handed = next(worker(), batch_size);
  if (handed.empty()) return std::nullopt;
  return handed;
}

std::vector<std::size_t> DistributedSampler::next(std::size_t worker, std::size_t count) {
  impl_->batch_size_ = count;
  const std::vector<Index> handed = impl_->core_.next(worker, count);
  return {handed.begin(), handed.end()};
}

void DistributedSampler::expect_batches(std::size_t size, bool drop_last) {
  impl_->batch_size_ = size;
  impl_->smallest_batch_ = drop_last ? std::max<std::size_t>(size, 1) : 1;
  impl_->core_.drop_batches_below(impl_->smallest_batch_);
}

void DistributedSampler::observe(const at::Tensor& loss, std::int64_t batch, const ObserveOptions& options,
                                 Worker worker) {
  const std::size_t meant = impl_->worker(worker, "DistributedSampler::observe");
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(batch, 0));
  impl_->observe(meant, loss, impl_->oldest(meant, count), options);
}

void DistributedSampler::observe(const at::Tensor& loss, const std::vector<std::size_t>& examples,
                                 const ObserveOptions& options, Worker worker) {
  const std::size_t meant = impl_->worker(worker, "DistributedSampler::observe");
  require_examples(impl_->core_.spec().unit, "DistributedSampler::observe");
  auto named = as_names(examples);
  impl_->core_.check_outstanding(meant, named);
  impl_->observe(meant, loss, std::move(named), options);
}

void DistributedSampler::observe_gradients(const std::vector<at::Tensor>& rows, Worker worker) {
  constexpr const char* kWhere = "DistributedSampler::observe_gradients";
  const std::size_t meant = impl_->worker(worker, kWhere);
  Observed observed = impl_->given(meant, rows, kWhere);
  const auto oldest = impl_->oldest(meant, static_cast<std::size_t>(observed.batch));
  impl_->deposit(meant, std::move(observed), oldest, {});
}

void DistributedSampler::observe_gradients(const std::vector<at::Tensor>& rows,
                                           const std::vector<std::size_t>& examples, Worker worker) {
  constexpr const char* kWhere = "DistributedSampler::observe_gradients";
  const std::size_t meant = impl_->worker(worker, kWhere);
  const auto named = as_names(examples);
  impl_->core_.check_outstanding(meant, named);
  Observed observed = impl_->given(meant, rows, kWhere);
  require_one_each(observed.batch, named.size(), kWhere);
  impl_->deposit(meant, std::move(observed), named, {});
}

void DistributedSampler::observe_microbatch(const std::vector<at::Tensor>& parameters, Worker worker) {
  require_whole_units(impl_->batch_size_, impl_->core_.spec().unit, "DistributedSampler::observe_microbatch");
  observe_gradients(rows_of_gradients(parameters), worker);
}

void DistributedSampler::step() { impl_->step(); }

void DistributedSampler::step_after_backward(bool on) { impl_->step_after_backward_ = on; }

void DistributedSampler::average(const std::vector<at::Tensor>& gradients, double examples) {
  static_cast<void>(worker());
  impl_->average({gradients}, {examples}, gradients);
}

void DistributedSampler::average(const std::vector<std::vector<at::Tensor>>& gradients,
                                 const std::vector<double>& examples, const std::vector<at::Tensor>& mean) {
  impl_->average(gradients, examples, mean);
}

void DistributedSampler::end_epoch() {
  impl_->core_.end_epoch();
  impl_->forget();
}

std::size_t DistributedSampler::missed_backwards() const {
  std::size_t missed = 0;
  for (const auto& each : impl_->backwards_) missed += each->missed();
  return missed;
}

double DistributedSampler::seconds() const { return impl_->seconds_; }

std::size_t DistributedSampler::worker() const {
  return impl_->worker(std::nullopt, "DistributedSampler::worker");
}

cdgrab::DistributedSampler& DistributedSampler::core() { return impl_->core_; }
Turn& DistributedSampler::turn() { return *impl_->turn_; }
Communicator& DistributedSampler::communicator() { return *impl_->communicator_; }

State DistributedSampler::save_state() { return impl_->core_.save(); }
State DistributedSampler::local_state() { return impl_->core_.local_state(); }

/// The core may leave what was passed in, sender and holder, with something of a state that it refuses.
LoadReport DistributedSampler::load_state(const State& state) {
  cdgrab::DistributedSampler& core = impl_->core_;
  const State before = core.local_state();
  LoadReport report;
  try {
    report = core.load(state);
  } catch (const StateMismatch&) {
    if (core.local_state() != before) core.load(before);
    throw;
  }
  impl_->forget();
  return report;
}

void DistributedSampler::save(::torch::serialize::OutputArchive& archive) const {
  write_state(impl_->core_.save(), archive);
}

void DistributedSampler::load(::torch::serialize::InputArchive& archive) { load_state(read_state(archive)); }

}  // namespace cdgrab::torch
