// SPDX-License-Identifier: Apache-2.0
// IDX, the format of MNIST and of the data sets made after it: a shape and unsigned bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace cdgrab::data {

/// Row-major: as many values as the product of the shape.
struct Bytes {
  std::vector<std::uint64_t> shape;
  std::vector<std::uint8_t> values;
};

/// Gzipped or plain. Memory grows with the bytes that are really there, whatever the header claims.
/// Throws FileError.
Bytes read_idx(const std::filesystem::path& path);

enum class Split { kTrain, kTest };

struct LabelledImages {
  Bytes images;  ///< n x 28 x 28
  Bytes labels;  ///< n, each 0..9
};

/// {train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte in `folder`, as MNIST and Fashion-MNIST name
/// them; with .gz where there is no plain one. Throws FileError.
LabelledImages read_mnist(const std::filesystem::path& folder, Split split);

}  // namespace cdgrab::data
