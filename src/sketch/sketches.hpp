// SPDX-License-Identifier: Apache-2.0
// The three sketches behind make_sketch(), and what they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cdgrab/sketch.hpp"

namespace cdgrab::sketches {

/// The most memory a sketch may take for its own numbers.
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{4} << 30;

/// out[k] = scale * N(0, 1) for k < count; a pure function of (seed, part).
template <class T>
void fill_gaussian(T* out, std::size_t count, double scale, std::uint64_t seed, std::uint32_t part);

/// size x dim numbers N(0, 1/size). Throws UserError above kMaxBytes.
template <class T>
std::unique_ptr<Sketch<T>> make_gauss(std::size_t size, std::size_t dim, std::uint64_t seed);

/// size x dim, an entry in sqrt(dim) is +-sqrt(sqrt(dim) / size), the others are zero. Throws UserError
/// above kMaxBytes.
template <class T>
std::unique_ptr<Sketch<T>> make_sparse(std::size_t size, std::size_t dim, std::uint64_t seed);

/// Each tensor from both sides. Throws UserError above kMaxBytes.
template <class T>
std::unique_ptr<Sketch<T>> make_kron(const std::vector<KronTensor>& tensors, std::uint64_t seed);

}  // namespace cdgrab::sketches
