// SPDX-License-Identifier: Apache-2.0
// Images of bytes with a class each, whatever file they came from.
#pragma once

#include <cstdint>
#include <vector>

namespace cdgrab::data {

/// Row-major: as many values as the product of the shape.
struct Bytes {
  std::vector<std::uint64_t> shape;
  std::vector<std::uint8_t> values;
};

enum class Split { kTrain, kTest };

struct LabelledImages {
  Bytes images;  ///< n x height x width, or n x channels x height x width
  Bytes labels;  ///< n, each 0..9
};

}  // namespace cdgrab::data
