// SPDX-License-Identifier: Apache-2.0
// What the readers give, as tensors.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/images.hpp"
#include "tasks/task.hpp"

namespace cdgrab::tasks {

/// float32, or float64 if `wide`.
at::ScalarType float_type(bool wide);

/// A copy of the values in this shape.
template <class T>
Tensor tensor_of(const std::vector<T>& values, at::IntArrayRef shape) {
  Tensor out = at::empty(shape, at::CPU(c10::CppTypeToScalarType<T>::value));
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<T>());
  return out;
}

/// n x channels x height x width, from 0 to 1, and the classes.
Examples images_of(const data::LabelledImages& images, bool wide);

/// The first `count`, all if that is 0. Throws UserError if there are not that many.
Examples first_of(const Examples& examples, std::size_t count);

}  // namespace cdgrab::tasks
