// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy files: matrices of vectors and integers in, orders in and out. Everything is validated before
// anything is allocated; nothing in a file is ever executed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <variant>
#include <vector>

#include "cdgrab/permutation.hpp"

namespace cdgrab {

/// `rows` vectors of `dim` numbers, row by row.
template <class T>
struct Matrix {
  std::size_t rows = 0;
  std::size_t dim = 0;
  std::vector<T> values;
};

/// float32 stays float32, float64 stays float64.
using AnyMatrix = std::variant<Matrix<float>, Matrix<double>>;

/// Reads a 2-d array of float32 or float64, little-endian, C or Fortran order. Throws FileError.
AnyMatrix read_npy_matrix(const std::filesystem::path& path);

/// Reads a 1-d array of int32, int64, uint32 or uint64 as indices. Throws FileError.
std::vector<Index> read_npy_order(const std::filesystem::path& path);

/// Reads a 1-d array of int8 .. int64 or uint8 .. uint64. Throws FileError, also for a number above 2^63 - 1.
std::vector<std::int64_t> read_npy_integers(const std::filesystem::path& path);

/// Writes int64, beside and renamed: the file is whole or not there. Throws FileError.
void write_npy_order(const std::filesystem::path& path, std::span<const Index> order);

}  // namespace cdgrab
