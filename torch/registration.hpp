// SPDX-License-Identifier: Apache-2.0
// What the registrations of classes share: errors and types on their way into Python and back.
#pragma once

#include <torch/custom_class.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/sampler.hpp"
#include "cdgrab/state.hpp"
#include "cdgrab/torch/gradient_geometry.hpp"
#include "cdgrab/torch/turn.hpp"

namespace cdgrab::torch {

using Integers = c10::Dict<std::string, std::int64_t>;
using Numbers = c10::Dict<std::string, double>;
using Texts = c10::Dict<std::string, std::string>;
using Tensors = c10::Dict<std::string, Tensor>;

[[noreturn]] inline void pass_on(const char* kind, const std::exception& error) {
  throw std::runtime_error(std::string("cdgrab.") + kind + ": " + error.what());
}

/// The turn of a method's object, where it has turns; a constructor has none.
template <class... Arguments>
std::optional<Turn::Taken> turn_of(const Arguments&... /*arguments*/) {
  return std::nullopt;
}
template <class First, class... Arguments>
requires requires(const First& self) { self->turn(); }
Turn::Taken turn_of(const First& self, const Arguments&... /*arguments*/) {
  return Turn::Taken(self->turn());
}

/// Only the message of an exception crosses into Python: its kind goes along as the first word.
template <class Result, class... Arguments>
auto guarded(Result (*function)(Arguments...)) {
  return [function](Arguments... arguments) -> Result {
    try {
      [[maybe_unused]] const auto taken = turn_of(arguments...);
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

inline std::size_t count_of(std::int64_t value, const char* what) {
  if (value >= 0) return static_cast<std::size_t>(value);
  throw UserError("cdgrab", std::string(what) + " is " + std::to_string(value) + "; 0 or more is allowed");
}

inline std::vector<Shape> as_shapes(const std::vector<std::vector<std::int64_t>>& shapes) {
  std::vector<Shape> all;
  for (const auto& shape : shapes) {
    Shape& to = all.emplace_back();
    for (const std::int64_t size : shape) to.push_back(count_of(size, "a size in shapes"));
  }
  return all;
}

template <class Range>
Tensor as_tensor(const Range& values) {
  Tensor out = at::empty({static_cast<std::int64_t>(std::size(values))}, at::kLong);
  std::copy(std::begin(values), std::end(values), out.data_ptr<std::int64_t>());
  return out;
}

/// Indices as torch has them; what does not fit becomes an index that is out of range for sure.
inline std::vector<std::size_t> as_indices(const Tensor& indices) {
  if (indices.dim() != 1 || !c10::isIntegralType(indices.scalar_type(), /*includeBool=*/false))
    throw UserError("indices", "a tensor that is not one row of integers; give one index per example");
  const Tensor list = indices.to(at::kCPU, at::kLong).contiguous();
  const auto* first = list.const_data_ptr<std::int64_t>();
  std::vector<std::size_t> all;
  for (std::int64_t i = 0; i < list.numel(); ++i)
    all.push_back(first[i] < 0 ? kMaxExamples : static_cast<std::size_t>(first[i]));
  return all;
}

inline std::vector<Index> as_order(const Tensor& order) {
  std::vector<Index> all;
  for (const std::size_t i : as_indices(order)) all.push_back(static_cast<Index>(std::min(i, kMaxExamples)));
  return all;
}

/// torch has no arithmetic for unsigned types, and other libraries trip over them: the same bits, signed.
inline at::ScalarType scalar_type_of(DType dtype) {
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

inline DType dtype_of(const std::string& key, at::ScalarType type) {
  for (const DType dtype : {DType::kU8, DType::kU16, DType::kU32, DType::kI64, DType::kF32, DType::kF64})
    if (scalar_type_of(dtype) == type) return dtype;
  throw StateMismatch(key, std::string("a tensor of ") + c10::toString(type) + ", which no state holds");
}

inline Tensor as_tensor(const Array& array) {
  std::vector<std::int64_t> shape(array.shape.begin(), array.shape.end());
  Tensor out = at::empty(shape, scalar_type_of(array.dtype));
  if (!array.bytes.empty()) std::memcpy(out.data_ptr(), array.bytes.data(), array.bytes.size());
  return out;
}

inline Array as_array(const std::string& key, const Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_meta() || tensor.is_quantized())
    throw StateMismatch(key, "a tensor that is not plain numbers in memory, which no state holds");
  const Tensor flat = tensor.detach().to(at::kCPU).contiguous();
  Array array{dtype_of(key, flat.scalar_type()), {flat.sizes().begin(), flat.sizes().end()}, {}};
  array.bytes.resize(flat.nbytes());
  if (!array.bytes.empty()) std::memcpy(array.bytes.data(), flat.const_data_ptr(), array.bytes.size());
  return array;
}

/// What losses are observed with.
struct Options : ::torch::CustomClassHolder {
  explicit Options(ObserveOptions given) : options(std::move(given)) {}
  ObserveOptions options;
};
using OptionsPtr = c10::intrusive_ptr<Options>;

/// Of what observes losses. The options are said once: at each argument that is an object torch looks for an
/// attribute that is not there, which takes longer than a small graph does.
struct Observing : ::torch::CustomClassHolder {
  void observe_with(const Options& given) { options_ = given.options; }
  /// With what differs from batch to batch.
  [[nodiscard]] ObserveOptions options(std::optional<Tensor> example_of_row, std::int64_t repeats = 0) const {
    ObserveOptions all = options_;
    if (example_of_row) all.example_of_row = std::move(*example_of_row);
    all.repeats = repeats;
    return all;
  }

 private:
  ObserveOptions options_;
};

inline std::tuple<std::int64_t, std::int64_t> as_tuple(const Position& position) {
  return {static_cast<std::int64_t>(position.epoch), static_cast<std::int64_t>(position.handed_out)};
}

inline Integers as_dict(const EpochReport& report) {
  Integers all;
  all.insert("epoch", static_cast<std::int64_t>(report.epoch));
  all.insert("observed", static_cast<std::int64_t>(report.observed));
  all.insert("not_finite", static_cast<std::int64_t>(report.not_finite));
  all.insert("unpaired", static_cast<std::int64_t>(report.unpaired));
  all.insert("unobserved", static_cast<std::int64_t>(report.unobserved));
  return all;
}

inline std::tuple<Integers, Numbers, Texts, Tensors> as_dicts(const State& state) {
  std::tuple<Integers, Numbers, Texts, Tensors> all;
  for (const auto& [key, value] : state.entries()) {
    if (const auto* integer = std::get_if<std::int64_t>(&value)) std::get<0>(all).insert(key, *integer);
    if (const auto* number = std::get_if<double>(&value)) std::get<1>(all).insert(key, *number);
    if (const auto* text = std::get_if<std::string>(&value)) std::get<2>(all).insert(key, *text);
    if (const auto* array = std::get_if<Array>(&value)) std::get<3>(all).insert(key, as_tensor(*array));
  }
  return all;
}

inline State as_state(const Integers& integers, const Numbers& numbers, const Texts& texts,
                      const Tensors& tensors) {
  State state;
  for (const auto& item : integers) state.set(item.key(), item.value());
  for (const auto& item : numbers) state.set(item.key(), item.value());
  for (const auto& item : texts) state.set(item.key(), std::string(item.value()));
  for (const auto& item : tensors) state.set(item.key(), as_array(item.key(), item.value()));
  return state;
}

/// The sampler of many workers: registration_workers.cpp.
void define_workers(::torch::Library& library);

}  // namespace cdgrab::torch
