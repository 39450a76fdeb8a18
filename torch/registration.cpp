// SPDX-License-Identifier: Apache-2.0
// The one route into Python: torch.classes.cdgrab. No algorithm here, only types that torch can carry.
#include "registration.hpp"

#include "cdgrab/torch/sampler.hpp"

namespace cdgrab::torch {
namespace {

struct Handle : Observing {
  explicit Handle(Sampler s) : sampler(std::move(s)) {}
  cdgrab::Sampler& core() { return sampler.core(); }
  Turn& turn() { return sampler.turn(); }
  Sampler sampler;
};
using Self = const c10::intrusive_ptr<Handle>&;

struct Geometry : Observing {
  Geometry() = default;
  Geometry(GradientGeometry g, const Observing& like) : Observing(like), geometry(std::move(g)) {}
  Turn& turn() { return geometry.turn(); }
  GradientGeometry geometry;
};
using GeometrySelf = const c10::intrusive_ptr<Geometry>&;

Numbers herding_of(cdgrab::Sampler& core) {
  Numbers all;
  if (!core.herding()) return all;
  all.insert("used_l2", core.herding()->used.l2);
  all.insert("used_linf", core.herding()->used.linf);
  all.insert("next_l2", core.herding()->next.l2);
  all.insert("next_linf", core.herding()->next.linf);
  return all;
}

Numbers timings_of(const ObserveTimings& timings) {
  Numbers all;
  all.insert("walk", timings.walk);
  all.insert("gradients", timings.gradients);
  all.insert("products", timings.products);
  all.insert("signs", timings.signs);
  all.insert("update", timings.update);
  all.insert("order", timings.order);
  return all;
}

c10::intrusive_ptr<Handle> make_sampler(std::int64_t examples, std::string spec, std::int64_t seed,
                                        std::optional<Tensor> initial_order,
                                        std::vector<std::vector<std::int64_t>> shapes, bool record_herding,
                                        bool record_norms, bool record_timings) {
  SamplerOptions options;
  options.seed = static_cast<std::uint64_t>(seed);
  if (initial_order) options.initial_order = as_order(*initial_order);
  options.shapes = as_shapes(shapes);
  options.record_herding = record_herding;
  options.record_norms = record_norms;
  options.record_timings = record_timings;
  return c10::make_intrusive<Handle>(Sampler(count_of(examples, "examples"), spec, std::move(options)));
}

void define_sampler(::torch::Library& library) {
  library.class_<Handle>("Sampler")
      .def(::torch::init(guarded(&make_sampler)))
      .def("begin", guarded(+[](Self self) { self->sampler.reset(); }))
      .def("expect_batches", guarded(+[](Self self, std::int64_t size, bool drop_last) {
             self->sampler.expect_batches(count_of(size, "size"), drop_last);
           }))
      .def("upcoming", guarded(+[](Self self, std::int64_t count) {
             return as_tensor(self->core().upcoming(count_of(count, "count")));
           }))
      .def("hand_out",
           guarded(+[](Self self, std::int64_t count) { self->core().next(count_of(count, "count")); }))
      .def("observe_with", guarded(+[](Self self, OptionsPtr options) { self->observe_with(*options); }))
      .def("observe", guarded(+[](Self self, Tensor loss, std::int64_t batch, std::optional<Tensor> rows) {
             self->sampler.observe(loss, batch, self->options(std::move(rows)));
           }))
      .def("observe_named", guarded(+[](Self self, Tensor loss, Tensor indices, std::optional<Tensor> rows) {
             self->sampler.observe(loss, as_indices(indices), self->options(std::move(rows)));
           }))
      .def("observe_gradients",
           guarded(+[](Self self, std::vector<Tensor> rows, std::optional<Tensor> indices) {
             if (indices)
               self->sampler.observe_gradients(rows, as_indices(*indices));
             else
               self->sampler.observe_gradients(rows);
           }))
      .def("observe_microbatch", guarded(+[](Self self, std::vector<Tensor> parameters) {
             self->sampler.observe_microbatch(parameters);
           }))
      .def("set_scores", guarded(+[](Self self, Tensor scores) {
             const Tensor list = scores.detach().to(at::kCPU, at::kDouble).contiguous();
             self->core().set_scores({list.const_data_ptr<double>(), static_cast<std::size_t>(list.numel())});
           }))
      .def("end_epoch", guarded(+[](Self self) { self->sampler.end_epoch(); }))
      .def("examples", guarded(+[](Self self) { return static_cast<std::int64_t>(self->core().examples()); }))
      .def("spec", guarded(+[](Self self) { return print_spec(self->core().spec()); }))
      .def("unit", guarded(+[](Self self) { return static_cast<std::int64_t>(self->core().spec().unit); }))
      .def("balances", guarded(+[](Self self) { return self->core().spec().balances(); }))
      .def("needs_vectors", guarded(+[](Self self) { return self->core().needs_vectors(); }))
      .def("order", guarded(+[](Self self) { return as_tensor(self->core().order()); }))
      .def("next_order", guarded(+[](Self self) { return as_tensor(self->core().next_order()); }))
      .def("outstanding",
           guarded(+[](Self self) { return static_cast<std::int64_t>(self->core().outstanding()); }))
      .def("missed_backwards",
           guarded(+[](Self self) { return static_cast<std::int64_t>(self->sampler.missed_backwards()); }))
      .def("report", guarded(+[](Self self) { return as_dict(self->core().report()); }))
      .def("last_report", guarded(+[](Self self) { return as_dict(self->core().last_report()); }))
      .def("herding", guarded(+[](Self self) { return herding_of(self->core()); }))
      .def("norms", guarded(+[](Self self) {
             const auto norms = self->core().norms();
             Tensor out = at::empty({static_cast<std::int64_t>(norms.size())}, at::kDouble);
             std::copy(norms.begin(), norms.end(), out.data_ptr<double>());
             return out;
           }))
      .def("timings", guarded(+[](Self self) { return timings_of(self->sampler.timings()); }))
      .def("position", guarded(+[](Self self) { return as_tuple(self->core().position()); }))
      .def("trained_position", guarded(+[](Self self) { return as_tuple(self->core().trained_position()); }))
      .def("seek", guarded(+[](Self self, std::int64_t epoch, std::int64_t handed_out) {
             self->core().seek({count_of(epoch, "epoch"), count_of(handed_out, "handed_out")});
           }))
      .def("replay", guarded(+[](Self self) { self->core().replay(); }))
      .def("state", guarded(+[](Self self) { return as_dicts(self->core().state()); }))
      .def("load", guarded(+[](Self self, Integers integers, Numbers numbers, Texts texts, Tensors tensors) {
             self->sampler.load_state(as_state(integers, numbers, texts, tensors));
           }))
      .def("save_file", guarded(+[](Self self, std::string path) { save_state(self->core().state(), path); }))
      .def("load_file",
           guarded(+[](Self self, std::string path) { self->sampler.load_state(load_state(path)); }));
}

void define_geometry(::torch::Library& library) {
  library.class_<Geometry>("GradientGeometry")
      .def(::torch::init<>())
      .def("observe_with",
           guarded(+[](GeometrySelf self, OptionsPtr options) { self->observe_with(*options); }))
      .def("observe",
           guarded(+[](GeometrySelf self, Tensor loss, std::int64_t batch, std::optional<Tensor> rows) {
             self->geometry.observe(loss, batch, self->options(std::move(rows)));
           }))
      .def("compute",
           guarded(+[](GeometrySelf self, Tensor loss, std::int64_t batch, std::optional<Tensor> rows) {
             self->geometry.compute(loss, batch, self->options(std::move(rows)));
           }))
      .def("gram", guarded(+[](GeometrySelf self) { return self->geometry.gram(); }))
      .def("cross", guarded(+[](GeometrySelf self, c10::intrusive_ptr<Geometry> other) {
             return self->geometry.cross(other->geometry);
           }))
      .def("norms", guarded(+[](GeometrySelf self) { return self->geometry.norms(); }))
      .def("inner", guarded(+[](GeometrySelf self, std::vector<Tensor> direction) {
             return self->geometry.inner(direction);
           }))
      .def("inner_named", guarded(+[](GeometrySelf self, Tensors direction) {
             std::vector<std::pair<std::string, Tensor>> named;
             for (const auto& item : direction) named.emplace_back(item.key(), item.value());
             return self->geometry.inner(named);
           }))
      .def("weighted_sum",
           guarded(+[](GeometrySelf self, Tensor weights) { return self->geometry.weighted_sum(weights); }))
      .def("parameters", guarded(+[](GeometrySelf self) { return self->geometry.parameters(); }))
      .def("rules", guarded(+[](GeometrySelf self) { return self->geometry.rules(); }))
      .def("names", guarded(+[](GeometrySelf self) { return self->geometry.names(); }))
      .def("part", guarded(+[](GeometrySelf self, std::string pattern) {
             return c10::make_intrusive<Geometry>(self->geometry.part(pattern), *self);
           }))
      .def("rows", guarded(+[](GeometrySelf self) { return self->geometry.rows(); }));
}

/// -1 stands for an axis or a budget that is not given, no names for all parameters.
OptionsPtr make_options(bool sum, std::int64_t batch_axis, std::int64_t budget, bool strict,
                        std::optional<std::vector<std::string>> names, std::vector<Tensor> tensors,
                        std::string pattern) {
  ObserveOptions options;
  options.sum = sum;
  options.batch_axis = batch_axis;
  if (budget >= 0) options.budget = static_cast<std::size_t>(budget);
  options.strict = strict;
  if (names) {
    std::vector<std::pair<std::string, Tensor>> named;
    for (std::size_t i = 0; i < std::min(names->size(), tensors.size()); ++i)
      named.emplace_back((*names)[i], tensors[i]);
    options.parameters = ParameterSet(std::move(named), pattern);
  }
  return c10::make_intrusive<Options>(std::move(options));
}

}  // namespace

static void define_all(::torch::Library& library) {
  library.class_<Options>("ObserveOptions").def(::torch::init(guarded(&make_options)));
  define_sampler(library);
  define_geometry(library);
  define_workers(library);
}

}  // namespace cdgrab::torch

TORCH_LIBRARY(cdgrab, library) { cdgrab::torch::define_all(library); }
