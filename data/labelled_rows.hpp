// SPDX-License-Identifier: Apache-2.0
// Dense rows with a class each, from a pair of .npy files: x, 2-d and of floats, and y, 1-d and of integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace cdgrab::data {

struct LabelledRows {
  std::size_t dim = 0;
  std::vector<float> values;              ///< n x dim, row by row, finite
  std::vector<std::int32_t> label;        ///< n, each 0 .. k - 1
  std::vector<std::int64_t> label_names;  ///< k, ascending: the labels as the file has them
};

/// x of float32 or float64, y of any integers, at most 1000 different ones; not gzipped. Throws FileError,
/// also for rows that are none or empty.
LabelledRows read_npy_pair(const std::filesystem::path& x, const std::filesystem::path& y);

/// A pair that belongs to `like`, such as its test set: of the same dim, and with no other labels.
LabelledRows read_npy_pair(const std::filesystem::path& x, const std::filesystem::path& y,
                           const LabelledRows& like);

/// x.npy and y.npy in `folder`. Throws FileError.
LabelledRows read_npy_folder(const std::filesystem::path& folder);

/// x_test.npy and y_test.npy in `folder`, which belong to `like`; nothing if neither is there. Throws
/// FileError.
std::optional<LabelledRows> read_npy_test(const std::filesystem::path& folder, const LabelledRows& like);

}  // namespace cdgrab::data
