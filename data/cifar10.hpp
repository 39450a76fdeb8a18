// SPDX-License-Identifier: Apache-2.0
// CIFAR-10, "binary version": records of one byte for the class and 3 x 32 x 32 bytes for the image.
#pragma once

#include <filesystem>

#include "data/images.hpp"

namespace cdgrab::data {

/// data_batch_1.bin .. data_batch_5.bin in `folder`, or test_batch.bin; with .gz where there is no plain
/// one. Images of n x 3 x 32 x 32. Throws FileError.
LabelledImages read_cifar10(const std::filesystem::path& folder, Split split);

/// One such file, gzipped or plain, of any number of records but none. Throws FileError.
LabelledImages read_cifar10_batch(const std::filesystem::path& path);

}  // namespace cdgrab::data
