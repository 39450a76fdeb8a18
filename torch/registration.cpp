// SPDX-License-Identifier: Apache-2.0
// The one route into Python: torch.classes.cdgrab. No algorithm here, only types that torch can carry.
#include <torch/custom_class.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "autograd.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/torch/sampler.hpp"

namespace cdgrab::torch {
namespace {

using Integers = c10::Dict<std::string, std::int64_t>;
using Numbers = c10::Dict<std::string, double>;
using Texts = c10::Dict<std::string, std::string>;
using Tensors = c10::Dict<std::string, Tensor>;

[[noreturn]] void pass_on(const char* kind, const std::exception& error) {
  throw std::runtime_error(std::string("cdgrab.") + kind + ": " + error.what());
}

/// Only the message of an exception crosses into Python: its kind goes along as the first word.
template <class Result, class... Arguments>
auto guarded(Result (*function)(Arguments...)) {
  return [function](Arguments... arguments) -> Result {
    try {
      return function(std::forward<Arguments>(arguments)...);
    } catch (const UserError& error) {
      pass_on("UserError", error);
    } catch (const StateMismatch& error) {
      pass_on("StateMismatch", error);
    } catch (const FileError& error) {
      pass_on("FileError", error);
    } catch (const CommunicationError& error) {
      pass_on("CommunicationError", error);
    } catch (const InvariantError& error) {
      pass_on("InvariantError", error);
    }
  };
}

std::size_t count_of(std::int64_t value, const char* what) {
  if (value >= 0) return static_cast<std::size_t>(value);
  throw UserError("cdgrab", std::string(what) + " is " + std::to_string(value) + "; 0 or more is allowed");
}

template <class Range>
Tensor as_tensor(const Range& values) {
  Tensor out = at::empty({static_cast<std::int64_t>(std::size(values))}, at::kLong);
  std::copy(std::begin(values), std::end(values), out.data_ptr<std::int64_t>());
  return out;
}

/// Indices as torch has them; what does not fit becomes an index that is out of range for sure.
std::vector<std::size_t> as_indices(const Tensor& indices) {
  if (indices.dim() != 1 || c10::isFloatingType(indices.scalar_type()))
    throw UserError("indices", "a tensor that is not one row of integers; give one index per example");
  const Tensor list = indices.to(at::kCPU, at::kLong).contiguous();
  const auto* first = list.const_data_ptr<std::int64_t>();
  std::vector<std::size_t> all;
  for (std::int64_t i = 0; i < list.numel(); ++i)
    all.push_back(first[i] < 0 ? kMaxExamples : static_cast<std::size_t>(first[i]));
  return all;
}

std::vector<Index> as_order(const Tensor& order) {
  std::vector<Index> all;
  for (const std::size_t i : as_indices(order)) all.push_back(static_cast<Index>(std::min(i, kMaxExamples)));
  return all;
}

/// torch has no arithmetic for unsigned types, and other libraries trip over them: the same bits, signed.
at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return at::kByte;
    case DType::kU16:
      return at::kShort;
    case DType::kU32:
      return at::kInt;
    case DType::kI64:
      return at::kLong;
    case DType::kF32:
      return at::kFloat;
    case DType::kF64:
      return at::kDouble;
  }
  throw InvariantError("state", "an array of unknown type");
}

DType dtype_of(const std::string& key, at::ScalarType type) {
  for (const DType dtype : {DType::kU8, DType::kU16, DType::kU32, DType::kI64, DType::kF32, DType::kF64})
    if (scalar_type_of(dtype) == type) return dtype;
  throw StateMismatch(key, std::string("a tensor of ") + c10::toString(type) + ", which no state holds");
}

Tensor as_tensor(const Array& array) {
  std::vector<std::int64_t> shape(array.shape.begin(), array.shape.end());
  Tensor out = at::empty(shape, scalar_type_of(array.dtype));
  if (!array.bytes.empty()) std::memcpy(out.data_ptr(), array.bytes.data(), array.bytes.size());
  return out;
}

Array as_array(const std::string& key, const Tensor& tensor) {
  const Tensor flat = tensor.detach().to(at::kCPU).contiguous();
  Array array{dtype_of(key, flat.scalar_type()), {flat.sizes().begin(), flat.sizes().end()}, {}};
  array.bytes.resize(flat.nbytes());
  if (!array.bytes.empty()) std::memcpy(array.bytes.data(), flat.const_data_ptr(), array.bytes.size());
  return array;
}

struct Parameters : ::torch::CustomClassHolder {
  explicit Parameters(ParameterSet parameters) : set(std::move(parameters)) {}
  ParameterSet set;
};
using ParametersPtr = c10::intrusive_ptr<Parameters>;

ObserveOptions observe_options(bool sum, std::int64_t batch_axis,
                               const std::optional<ParametersPtr>& parameters, std::int64_t budget) {
  ObserveOptions options;
  options.sum = sum;
  options.batch_axis = batch_axis;
  if (parameters) options.parameters = (*parameters)->set;
  if (budget >= 0) options.budget = static_cast<std::size_t>(budget);
  return options;
}

struct Handle : ::torch::CustomClassHolder {
  explicit Handle(Sampler s) : sampler(std::move(s)) {}
  cdgrab::Sampler& core() { return sampler.core(); }
  Sampler sampler;
};
using Self = const c10::intrusive_ptr<Handle>&;

struct Geometry : ::torch::CustomClassHolder {
  GradientGeometry geometry;
};
using GeometrySelf = const c10::intrusive_ptr<Geometry>&;

std::tuple<std::int64_t, std::int64_t> as_tuple(const Position& position) {
  return {static_cast<std::int64_t>(position.epoch), static_cast<std::int64_t>(position.handed_out)};
}

Integers as_dict(const EpochReport& report) {
  Integers all;
  all.insert("epoch", static_cast<std::int64_t>(report.epoch));
  all.insert("observed", static_cast<std::int64_t>(report.observed));
  all.insert("not_finite", static_cast<std::int64_t>(report.not_finite));
  all.insert("unpaired", static_cast<std::int64_t>(report.unpaired));
  all.insert("unobserved", static_cast<std::int64_t>(report.unobserved));
  return all;
}

Numbers herding_of(cdgrab::Sampler& core) {
  Numbers all;
  if (!core.herding()) return all;
  all.insert("used_l2", core.herding()->used.l2);
  all.insert("used_linf", core.herding()->used.linf);
  all.insert("next_l2", core.herding()->next.l2);
  all.insert("next_linf", core.herding()->next.linf);
  return all;
}

Numbers as_dict(const ObserveTimings& timings) {
  Numbers all;
  all.insert("walk", timings.walk);
  all.insert("gradients", timings.gradients);
  all.insert("products", timings.products);
  all.insert("signs", timings.signs);
  all.insert("update", timings.update);
  all.insert("order", timings.order);
  return all;
}

std::tuple<Integers, Numbers, Texts, Tensors> as_dicts(const State& state) {
  std::tuple<Integers, Numbers, Texts, Tensors> all;
  for (const auto& [key, value] : state.entries()) {
    if (const auto* integer = std::get_if<std::int64_t>(&value)) std::get<0>(all).insert(key, *integer);
    if (const auto* number = std::get_if<double>(&value)) std::get<1>(all).insert(key, *number);
    if (const auto* text = std::get_if<std::string>(&value)) std::get<2>(all).insert(key, *text);
    if (const auto* array = std::get_if<Array>(&value)) std::get<3>(all).insert(key, as_tensor(*array));
  }
  return all;
}

State as_state(const Integers& integers, const Numbers& numbers, const Texts& texts, const Tensors& tensors) {
  State state;
  for (const auto& item : integers) state.set(item.key(), item.value());
  for (const auto& item : numbers) state.set(item.key(), item.value());
  for (const auto& item : texts) state.set(item.key(), std::string(item.value()));
  for (const auto& item : tensors) state.set(item.key(), as_array(item.key(), item.value()));
  return state;
}

c10::intrusive_ptr<Handle> make_sampler(std::int64_t examples, std::string spec, std::int64_t seed,
                                        std::optional<Tensor> initial_order,
                                        std::vector<std::vector<std::int64_t>> shapes, bool record_herding,
                                        bool record_norms, bool record_timings) {
  SamplerOptions options;
  options.seed = static_cast<std::uint64_t>(seed);
  if (initial_order) options.initial_order = as_order(*initial_order);
  for (const auto& shape : shapes) {
    Shape& to = options.shapes.emplace_back();
    for (const std::int64_t size : shape) to.push_back(count_of(size, "a size in shapes"));
  }
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
      .def("observe", guarded(+[](Self self, Tensor loss, std::int64_t batch, bool sum, std::int64_t axis,
                                  std::optional<ParametersPtr> parameters, std::int64_t budget) {
             self->sampler.observe(loss, batch, observe_options(sum, axis, parameters, budget));
           }))
      .def("observe_named", guarded(+[](Self self, Tensor loss, Tensor indices, bool sum, std::int64_t axis,
                                        std::optional<ParametersPtr> parameters, std::int64_t budget) {
             self->sampler.observe(loss, as_indices(indices), observe_options(sum, axis, parameters, budget));
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
      .def("timings", guarded(+[](Self self) { return as_dict(self->sampler.timings()); }))
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
      .def("observe",
           guarded(+[](GeometrySelf self, Tensor loss, std::int64_t batch, bool sum, std::int64_t axis,
                       std::optional<ParametersPtr> parameters, std::int64_t budget) {
             self->geometry.observe(loss, batch, observe_options(sum, axis, parameters, budget));
           }))
      .def("compute",
           guarded(+[](GeometrySelf self, Tensor loss, std::int64_t batch, bool sum, std::int64_t axis,
                       std::optional<ParametersPtr> parameters, std::int64_t budget) {
             self->geometry.compute(loss, batch, observe_options(sum, axis, parameters, budget));
           }))
      .def("gram", guarded(+[](GeometrySelf self) { return self->geometry.gram(); }))
      .def("norms", guarded(+[](GeometrySelf self) { return self->geometry.norms(); }))
      .def("inner", guarded(+[](GeometrySelf self, std::vector<Tensor> direction) {
             return self->geometry.inner(direction);
           }))
      .def("parameters", guarded(+[](GeometrySelf self) { return self->geometry.parameters(); }))
      .def("rows", guarded(+[](GeometrySelf self) { return self->geometry.rows(); }));
}

c10::intrusive_ptr<Parameters> make_parameters(std::vector<std::string> names, std::vector<Tensor> tensors,
                                               std::string pattern) {
  std::vector<std::pair<std::string, Tensor>> named;
  for (std::size_t i = 0; i < std::min(names.size(), tensors.size()); ++i)
    named.emplace_back(names[i], tensors[i]);
  return c10::make_intrusive<Parameters>(ParameterSet(std::move(named), pattern));
}

}  // namespace

static void define_all(::torch::Library& library) {
  library.class_<Parameters>("ParameterSet").def(::torch::init(guarded(&make_parameters)));
  define_sampler(library);
  define_geometry(library);
}

}  // namespace cdgrab::torch

TORCH_LIBRARY(cdgrab, library) { cdgrab::torch::define_all(library); }
