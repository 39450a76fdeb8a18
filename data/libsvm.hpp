// SPDX-License-Identifier: Apache-2.0
// LIBSVM's text format for classification: one example per line, "label index:value index:value ..".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace cdgrab::data {

/// Example i has the entries begin[i] .. begin[i + 1] - 1 of `column` and `value`.
struct SparseExamples {
  std::size_t dim = 0;                    ///< the largest index of the file
  std::vector<std::size_t> begin;         ///< n + 1
  std::vector<std::uint32_t> column;      ///< 0 .. dim - 1, ascending inside an example
  std::vector<float> value;               ///< finite
  std::vector<std::int32_t> label;        ///< n, each 0 .. k - 1
  std::vector<std::int64_t> label_names;  ///< k, ascending: the labels as the file has them
};

/// Gzipped or plain. Indices count from 1 and ascend; labels are whole numbers, at most 1000 different
/// ones; what follows a '#' is left out, and so are empty lines. Memory grows with the entries that are
/// there; `dim` alone comes from a number in the file and is at most 100 million: whoever makes the rows
/// dense looks at it first. Throws FileError, also for a file without an example.
SparseExamples read_libsvm(const std::filesystem::path& path);

/// A file that belongs to `like`, such as its test set: dim and label names are those of `like`, and an
/// index or a label that it does not have is refused.
SparseExamples read_libsvm(const std::filesystem::path& path, const SparseExamples& like);

}  // namespace cdgrab::data
