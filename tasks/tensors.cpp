// SPDX-License-Identifier: Apache-2.0
#include "tasks/tensors.hpp"

#include <fmt/format.h>

#include "cdgrab/error.hpp"

namespace cdgrab::tasks {

at::ScalarType float_type(bool wide) { return wide ? at::kDouble : at::kFloat; }

Examples images_of(const data::LabelledImages& images, bool wide) {
  std::vector<std::int64_t> shape(images.images.shape.begin(), images.images.shape.end());
  if (shape.size() == 3) shape.insert(shape.begin() + 1, 1);
  return {tensor_of(images.images.values, shape).to(float_type(wide)).div_(255.0),
          tensor_of(images.labels.values, {shape.front()}).to(at::kLong)};
}

Examples first_of(const Examples& examples, std::size_t count) {
  if (count == 0) return examples;
  if (count > static_cast<std::size_t>(examples.size()))
    throw UserError("--examples", fmt::format("{} of {} examples; name at most as many as there are", count,
                                              examples.size()));
  return examples.slice(0, static_cast<std::int64_t>(count));
}

}  // namespace cdgrab::tasks
