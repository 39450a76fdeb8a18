// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/torch/sampler.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <list>
#include <unordered_set>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/stopwatch.hpp"
#include "ghost_geometry.hpp"

namespace cdgrab::torch {

class Sampler::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(std::size_t examples, const Spec& spec, SamplerOptions options,
       std::unique_ptr<GhostGeometry> geometry)
      : record_timings_(options.record_timings),
        geometry_(geometry.get()),
        needs_vectors_(spec.balances() || geometry == nullptr),
        core_(examples, spec, std::move(options), std::move(geometry)) {}

  /// Whether the vectors themselves are asked for, so that rows in memory must be made of every block.
  static bool needs_rows(const Spec& spec, const SamplerOptions& options) {
    return spec.sketch.kind != SketchKind::kNone || spec.name == OrderName::kGreedy ||
           options.record_herding || options.record_norms;
  }

  void observe(const at::Tensor& loss, std::vector<Index> examples, const ObserveOptions& options);
  void observe_now(Observed&& observed, const std::vector<Index>& examples);
  void observe_rows(const Observed& observed, const std::vector<Index>& examples);
  [[nodiscard]] Observed observed(const std::vector<at::Tensor>& rows);
  [[nodiscard]] std::vector<Index> oldest(std::size_t count);
  /// A backward that comes later finds nobody waiting for it.
  void forget_waiting() {
    waiting_.clear();
    ++generation_;
  }

  /// Stands for the k-th tensor of vectors that are given, from call to call.
  const at::Tensor& given(std::size_t k, const at::Tensor& rows);

  bool record_timings_;
  ObserveTimings timings_;
  GhostGeometry* geometry_;  ///< null: the core has a dense one
  bool needs_vectors_;
  cdgrab::Sampler core_;
  std::size_t batch_size_ = 0;  ///< of the loader; 0: not known
  std::size_t missed_ = 0;

 private:
  /// An observed loss whose backward has not run; its examples are spoken for.
  struct Waiting {
    std::weak_ptr<Observation> observation;
    std::vector<Index> examples;
  };

  void drop_missed();

  std::list<Waiting> waiting_;
  std::uint64_t generation_ = 0;  ///< of waiting_
  std::vector<at::Tensor> given_;
  std::vector<at::Tensor> columns_;  ///< the parameters that make up a row, if rows are made
};

const at::Tensor& Sampler::Impl::given(std::size_t k, const at::Tensor& rows) {
  const at::Tensor one = rows.detach().select(0, 0);
  if (k == given_.size()) given_.push_back(at::empty_like(one));
  if (given_[k].numel() != one.numel())
    throw UserError(
        "Sampler::observe_gradients",
        fmt::format("tensor {} has {} numbers per example after {}; every call must have the same", k,
                    one.numel(), given_[k].numel()));
  return given_[k];
}

/// A graph that was freed without a backward takes its hooks, and so the observation, with it.
void Sampler::Impl::drop_missed() {
  const std::size_t before = waiting_.size();
  std::erase_if(waiting_, [](const Waiting& w) { return w.observation.expired(); });
  if (waiting_.size() == before) return;
  missed_ += before - waiting_.size();
  TORCH_WARN_ONCE("cdgrab: an observed loss was dropped without a backward; its examples count as unseen");
}

std::vector<Index> Sampler::Impl::oldest(std::size_t count) {
  drop_missed();
  const auto unit_of = [this](Index example) { return example / core_.spec().unit; };
  std::unordered_multiset<std::size_t> spoken_for;
  for (const Waiting& w : waiting_)
    for (const Index example : w.examples) spoken_for.insert(unit_of(example));
  auto all = core_.oldest_outstanding(0, spoken_for.size() + count);
  std::erase_if(all, [&](Index example) {
    const auto found = spoken_for.find(unit_of(example));
    return found != spoken_for.end() && (spoken_for.erase(found), true);
  });
  all.resize(count);
  return all;
}

void Sampler::Impl::observe(const at::Tensor& loss, std::vector<Index> examples,
                            const ObserveOptions& options) {
  const Stopwatch watch(record_timings_ ? &timings_.walk : nullptr);
  if (core_.spec().unit > 1)
    throw UserError(
        "Sampler::observe",
        fmt::format("a loss has a vector per example, and with unit={} one per unit is needed; call "
                    "observe_microbatch after the backward of a unit",
                    core_.spec().unit));
  if (!needs_vectors_) return core_.observe_block(examples);
  auto place = waiting_.insert(waiting_.end(), {{}, examples});
  try {
    place->observation =
        Observation::start(loss, static_cast<std::int64_t>(examples.size()), options,
                           [weak = weak_from_this(), place, generation = generation_](Observed&& observed) {
                             const auto self = weak.lock();
                             if (self == nullptr || self->generation_ != generation) return;
                             const std::vector<Index> named = std::move(place->examples);
                             self->waiting_.erase(place);
                             self->observe_now(std::move(observed), named);
                           });
  } catch (...) {
    waiting_.erase(place);
    throw;
  }
}

void Sampler::Impl::observe_now(Observed&& observed, const std::vector<Index>& examples) {
  timings_.gradients += observed.seconds;
  if (geometry_ == nullptr) return observe_rows(observed, examples);
  if (needs_vectors_) {
    const Stopwatch watch(record_timings_ ? &timings_.gradients : nullptr);
    geometry_->set_block(std::move(observed));
  }
  core_.observe_block(examples);
}

/// Every parameter has its columns, in the order in which they were first met; in a batch that does not
/// depend on one, zeros.
void Sampler::Impl::observe_rows(const Observed& observed, const std::vector<Index>& examples) {
  const at::NoGradGuard no_grad;
  const bool first = columns_.empty();
  std::unordered_map<const void*, at::Tensor> parts;
  for (const ParameterGradients& p : observed.parameters) {
    if (first) columns_.push_back(p.parameter);
    parts[p.parameter.unsafeGetTensorImpl()] = p.gradients.rows().to(at::kCPU);
  }
  std::vector<at::Tensor> rows;
  bool wide = false;
  for (const at::Tensor& parameter : columns_) {
    const auto found = parts.find(parameter.unsafeGetTensorImpl());
    rows.push_back(found == parts.end() ? at::zeros({observed.batch, parameter.numel()}) : found->second);
    wide = wide || parameter.scalar_type() == at::kDouble;
    if (found != parts.end()) parts.erase(found);
  }
  if (!parts.empty())
    throw UserError("Sampler::observe",
                    "a parameter that no batch before this one depended on; an order that needs "
                    "rows (sketch, greedy, recorded herding or norms) must see all from the first "
                    "batch on");
  const at::Tensor all = at::cat(rows, 1).to(wide ? at::kDouble : at::kFloat).contiguous();
  const auto count = static_cast<std::size_t>(all.size(0));
  const auto dim = static_cast<std::size_t>(all.size(1));
  if (wide)
    core_.observe(Rows<double>{all.const_data_ptr<double>(), count, dim}, examples);
  else
    core_.observe(Rows<float>{all.const_data_ptr<float>(), count, dim}, examples);
}

namespace {

std::vector<Index> as_names(const std::vector<std::size_t>& examples) {
  std::vector<Index> names;
  for (const std::size_t example : examples)
    names.push_back(static_cast<Index>(std::min<std::size_t>(example, kMaxExamples)));
  return names;
}

}  // namespace

Sampler::Sampler(std::size_t examples, std::string_view spec, SamplerOptions options) {
  const Spec parsed = parse_spec(spec);
  auto geometry = Impl::needs_rows(parsed, options) ? nullptr : std::make_unique<GhostGeometry>();
  impl_ = std::make_shared<Impl>(examples, parsed, std::move(options), std::move(geometry));
}

void Sampler::reset(std::optional<std::size_t> new_size) {
  if (new_size && *new_size != impl_->core_.examples())
    throw UserError("Sampler::reset",
                    fmt::format("a new size of {}; this sampler orders {} examples: make another", *new_size,
                                impl_->core_.examples()));
  const std::uint64_t before = impl_->core_.epoch();
  impl_->core_.begin();
  if (impl_->core_.epoch() != before) impl_->forget_waiting();
}

std::optional<std::vector<std::size_t>> Sampler::next(std::size_t batch_size) {
  impl_->batch_size_ = batch_size;
  const auto handed = impl_->core_.next(batch_size);
  if (handed.empty()) return std::nullopt;
  return std::vector<std::size_t>(handed.begin(), handed.end());
}

void Sampler::expect_batches(std::size_t size, bool drop_last) {
  impl_->batch_size_ = size;
  impl_->core_.drop_batches_below(drop_last ? size : 1);
}

void Sampler::observe(const at::Tensor& loss, std::int64_t batch, const ObserveOptions& options) {
  impl_->observe(loss, impl_->oldest(static_cast<std::size_t>(std::max<std::int64_t>(batch, 0))), options);
}

void Sampler::observe(const at::Tensor& loss, const std::vector<std::size_t>& examples,
                      const ObserveOptions& options) {
  auto named = as_names(examples);
  impl_->core_.check_outstanding(named);
  impl_->observe(loss, std::move(named), options);
}

void Sampler::observe_gradients(const std::vector<at::Tensor>& rows) {
  Observed observed = impl_->observed(rows);
  const auto oldest = impl_->oldest(static_cast<std::size_t>(observed.batch));
  impl_->observe_now(std::move(observed), oldest);
}

void Sampler::observe_gradients(const std::vector<at::Tensor>& rows,
                                const std::vector<std::size_t>& examples) {
  const auto named = as_names(examples);
  impl_->core_.check_outstanding(named);
  Observed observed = impl_->observed(rows);
  if (static_cast<std::size_t>(observed.batch) != named.size())
    throw UserError(
        "Sampler::observe_gradients",
        fmt::format("{} rows and {} examples; one example per row is needed", observed.batch, named.size()));
  impl_->observe_now(std::move(observed), named);
}

/// Vectors that were given, as a backward would have left them.
Observed Sampler::Impl::observed(const std::vector<at::Tensor>& rows) {
  const at::NoGradGuard no_grad;
  if (rows.empty())
    throw UserError("Sampler::observe_gradients", "no tensors; give B x d, or B x .. per parameter");
  Observed observed{rows.front().dim() == 0 ? 0 : rows.front().size(0), {}, 0.0};
  for (const at::Tensor& r : rows)
    if (r.dim() < 1 || r.size(0) != observed.batch || r.size(0) == 0)
      throw UserError(
          "Sampler::observe_gradients",
          fmt::format("a tensor of shape {} beside a batch of {}; the first dimension is the batch, at "
                      "least 1",
                      fmt::join(r.sizes(), "x"), observed.batch));
  for (std::size_t k = 0; k < rows.size(); ++k)
    observed.parameters.push_back(
        {given(k, rows[k]), Contribution::of_rows(rows[k].detach().reshape({observed.batch, -1}))});
  return observed;
}

void Sampler::observe_microbatch(const std::vector<at::Tensor>& parameters) {
  const std::size_t unit = impl_->core_.spec().unit;
  const std::size_t batch = impl_->batch_size_;
  if (batch != 0 && batch % unit != 0 && unit % batch != 0)
    throw UserError(
        "Sampler::observe_microbatch",
        fmt::format("batches of {} and unit={}; a batch holds parts of units, whose gradients cannot "
                    "be told apart: one of the two has to divide the other",
                    batch, unit));
  std::vector<at::Tensor> rows;
  for (const at::Tensor& p : parameters)
    rows.push_back((p.grad().defined() ? p.grad() : at::zeros_like(p)).unsqueeze(0));
  observe_gradients(rows);
}

void Sampler::end_epoch() {
  impl_->core_.end_epoch();
  impl_->forget_waiting();
}

std::size_t Sampler::missed_backwards() const { return impl_->missed_; }

ObserveTimings Sampler::timings() const {
  ObserveTimings all = impl_->timings_;
  if (!impl_->record_timings_) return {};
  const Timings core = impl_->core_.timings();
  if (impl_->geometry_ != nullptr) {
    all.products = impl_->geometry_->factors().measuring();
    all.update = impl_->geometry_->factors().applying();
  }
  all.signs = core.balance - all.products - all.update;
  all.order = core.order;
  return all;
}

cdgrab::Sampler& Sampler::core() { return impl_->core_; }

void Sampler::save(::torch::serialize::OutputArchive& archive) const {
  const auto bytes = encode_state(impl_->core_.state());
  at::Tensor blob = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(blob.data_ptr(), bytes.data(), bytes.size());
  archive.write("cdgrab.state", blob, /*is_buffer=*/true);
}

void Sampler::load(::torch::serialize::InputArchive& archive) {
  at::Tensor blob;
  archive.read("cdgrab.state", blob, /*is_buffer=*/true);
  const auto* bytes = static_cast<const std::byte*>(blob.const_data_ptr());
  load_state(decode_state({bytes, static_cast<std::size_t>(blob.numel())}, "torch archive"));
}

void Sampler::load_state(const State& state) {
  impl_->core_.load(state);
  impl_->forget_waiting();
}

}  // namespace cdgrab::torch
