// SPDX-License-Identifier: Apache-2.0
// IDX, the format of MNIST and of the data sets made after it: a shape and unsigned bytes.
#pragma once

#include <filesystem>

#include "data/images.hpp"

namespace cdgrab::data {

/// Gzipped or plain. Memory grows with the bytes that are really there, whatever the header claims.
/// Throws FileError.
Bytes read_idx(const std::filesystem::path& path);

/// {train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte in `folder`, as MNIST and Fashion-MNIST name
/// them; with .gz where there is no plain one. Images of n x 28 x 28. Throws FileError.
LabelledImages read_mnist(const std::filesystem::path& folder, Split split);

}  // namespace cdgrab::data
