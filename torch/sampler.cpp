// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/torch/sampler.hpp"

#include <fmt/format.h>

#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/stopwatch.hpp"
#include "ghost_geometry.hpp"
#include "late_rows.hpp"
#include "observer.hpp"
#include "sketched_geometry.hpp"

namespace cdgrab::torch {

class Sampler::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(std::size_t examples, const Spec& spec, SamplerOptions options,
       std::unique_ptr<GhostGeometry> geometry)
      : record_timings_(options.record_timings),
        records_vectors_(options.record_herding || options.record_norms),
        shapes_(options.shapes),
        geometry_(geometry.get()),
        sketched_(dynamic_cast<SketchedGeometry*>(geometry.get())),
        core_(examples, spec, std::move(options), std::move(geometry)) {}

  /// None if the vectors themselves are asked for, so that rows in memory must be made of every block.
  static std::unique_ptr<GhostGeometry> make_geometry(std::size_t examples, const Spec& spec,
                                                      const SamplerOptions& options) {
    if (Sketcher::makes(spec.sketch.kind)) {
      const std::size_t units = (examples + spec.unit - 1) / spec.unit;
      return std::make_unique<SketchedGeometry>(Sketcher(spec.sketch, units, options.shapes, options.seed));
    }
    const bool rows = spec.sketch.kind != SketchKind::kNone || spec.name == OrderName::kGreedy ||
                      options.record_herding || options.record_norms;
    return rows ? nullptr : std::make_unique<GhostGeometry>();
  }

  Observed given(const std::vector<at::Tensor>& rows, const char* where) {
    return given_.observed(sketched_ == nullptr ? rows : cut_by_shapes(rows, shapes_, where), where);
  }
  void observe(const at::Tensor& loss, std::vector<Index> examples, const ObserveOptions& options);
  /// The gradients are whole ones.
  void observe_now(Observed&& observed, const std::vector<Index>& examples);
  /// They are as the geometry has them.
  void set_and_observe(Observed&& observed, const std::vector<Index>& examples);
  [[nodiscard]] std::vector<Index> oldest(std::size_t count);
  /// They may be wanted for a diagnosis, too.
  [[nodiscard]] bool needs_vectors() const {
    return geometry_ == nullptr || records_vectors_ || core_.needs_vectors();
  }

  bool record_timings_;
  bool records_vectors_;
  std::vector<Shape> shapes_;
  ObserveTimings timings_;
  GhostGeometry* geometry_;     ///< null: the core has a dense one
  SketchedGeometry* sketched_;  ///< the same, if it holds sketches
  cdgrab::Sampler core_;
  std::size_t batch_size_ = 0;  ///< of the loader; 0: not known
  std::shared_ptr<Turn> turn_ = std::make_shared<Turn>();
  std::shared_ptr<Backwards> backwards_ = std::make_shared<Backwards>(turn_);

 private:
  [[nodiscard]] Shortening shortening();

  GivenVectors given_;
  RowMatrix rows_;
};

std::vector<Index> Sampler::Impl::oldest(std::size_t count) {
  return backwards_->oldest(count, [this](std::size_t all) { return core_.oldest_outstanding(0, all); });
}

void Sampler::Impl::observe(const at::Tensor& loss, std::vector<Index> examples,
                            const ObserveOptions& options) {
  const Stopwatch watch(record_timings_ ? &timings_.walk : nullptr);
  require_examples(core_.spec().unit, "Sampler::observe");
  if (!needs_vectors()) return core_.observe_block(examples);
  const bool shortens = sketched_ != nullptr && !records_vectors_;
  backwards_->wait_for(
      loss, std::move(examples), options,
      [weak = weak_from_this(), shortens](Observed&& observed, const std::vector<Index>& named) {
        const auto self = weak.lock();
        if (self == nullptr) return;
        if (shortens)
          self->set_and_observe(std::move(observed), named);
        else
          self->observe_now(std::move(observed), named);
      },
      {.fused = core_.spec().fused,
       .sums = geometry_ != nullptr,
       .late = geometry_ != nullptr && !core_.spec().frozen,
       .shortening = shortens ? shortening() : Shortening{}});
}

Shortening Sampler::Impl::shortening() {
  const auto sketcher = [weak = weak_from_this()]() -> Sketcher* {
    const auto self = weak.lock();
    return self == nullptr ? nullptr : &self->sketched_->sketcher();
  };
  return shortening_by(sketcher, core_.epoch());
}

void Sampler::Impl::observe_now(Observed&& observed, const std::vector<Index>& examples) {
  if (geometry_ == nullptr) {
    timings_.gradients += observed.seconds;
    const at::Tensor matrix = rows_.of(observed, "Sampler::observe");
    return visit_rows(matrix, [&](const auto& rows) { core_.observe(rows, examples); });
  }
  if (sketched_ == nullptr) return set_and_observe(std::move(observed), examples);
  Observed sketched = sketch_all(sketched_->sketcher(), core_.epoch(), observed);
  if (!records_vectors_) return set_and_observe(std::move(sketched), examples);
  const at::Tensor matrix = rows_.of(observed, "Sampler::observe");
  if (core_.needs_vectors()) sketched_->set_block(std::move(sketched));
  visit_rows(matrix, [&](const auto& rows) { core_.observe_block(rows, examples); });
}

void Sampler::Impl::set_and_observe(Observed&& observed, const std::vector<Index>& examples) {
  timings_.gradients += observed.seconds;
  if (!needs_vectors()) return core_.observe_block(examples);
  // An accumulator that stands still within a batch must see it whole.
  LateRows all(std::move(observed), /*whole=*/core_.spec().frozen);
  for (std::span<const Index> left = examples; !left.empty();) {
    std::size_t count = 0;
    {
      const Stopwatch watch(record_timings_ ? &timings_.gradients : nullptr);
      Observed some = all.next();
      count = static_cast<std::size_t>(some.batch);
      geometry_->set_block(std::move(some));
    }
    core_.observe_block(left.first(count));
    left = left.subspan(count);
  }
}

Sampler::Sampler(std::size_t examples, std::string_view spec, SamplerOptions options) {
  const Spec parsed = parse_spec(spec);
  auto geometry = Impl::make_geometry(examples, parsed, options);
  impl_ = std::make_shared<Impl>(examples, parsed, std::move(options), std::move(geometry));
}

void Sampler::reset(std::optional<std::size_t> new_size) {
  if (new_size && *new_size != impl_->core_.examples())
    throw UserError("Sampler::reset",
                    fmt::format("a new size of {}; this sampler orders {} examples: make another", *new_size,
                                impl_->core_.examples()));
  const std::uint64_t before = impl_->core_.epoch();
  impl_->core_.begin();
  if (impl_->core_.epoch() != before) impl_->backwards_->forget();
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
  Observed observed = impl_->given(rows, "Sampler::observe_gradients");
  const auto oldest = impl_->oldest(static_cast<std::size_t>(observed.batch));
  impl_->observe_now(std::move(observed), oldest);
}

void Sampler::observe_gradients(const std::vector<at::Tensor>& rows,
                                const std::vector<std::size_t>& examples) {
  constexpr const char* kWhere = "Sampler::observe_gradients";
  const auto named = as_names(examples);
  impl_->core_.check_outstanding(named);
  Observed observed = impl_->given(rows, kWhere);
  require_one_each(observed.batch, named.size(), kWhere);
  impl_->observe_now(std::move(observed), named);
}

void Sampler::observe_microbatch(const std::vector<at::Tensor>& parameters) {
  require_whole_units(impl_->batch_size_, impl_->core_.spec().unit, "Sampler::observe_microbatch");
  observe_gradients(rows_of_gradients(parameters));
}

void Sampler::end_epoch() {
  impl_->core_.end_epoch();
  impl_->backwards_->forget();
}

std::size_t Sampler::missed_backwards() const { return impl_->backwards_->missed(); }

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
Turn& Sampler::turn() { return *impl_->turn_; }

void Sampler::save(::torch::serialize::OutputArchive& archive) const {
  write_state(impl_->core_.state(), archive);
}

void Sampler::load(::torch::serialize::InputArchive& archive) { load_state(read_state(archive)); }

void Sampler::load_state(const State& state) {
  impl_->core_.load(state);
  impl_->backwards_->forget();
}

}  // namespace cdgrab::torch
