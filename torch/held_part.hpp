// SPDX-License-Identifier: Apache-2.0
// A rank's slice of one part: of the pair differences that wait for their signs, and of the accumulator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cdgrab/bytes.hpp"
#include "cdgrab/geometry.hpp"
#include "contribution.hpp"

namespace cdgrab::torch {

/// Differences get the next numbers, from 0 on. What is not said here is said at SliceHolder.
class HeldPart {
 public:
  virtual ~HeldPart() = default;
  /// `count` slices of differences, in the part's type.
  virtual void hold_rows(Bytes rows, std::size_t count) = 0;
  /// Two examples for each difference: the first less the second.
  virtual void hold_factors(Contribution examples) = 0;
  [[nodiscard]] virtual std::size_t held_bytes() const = 0;

  virtual void products(std::span<const std::uint64_t> numbers, Wanted wanted, Products& out) = 0;
  virtual void combine(std::span<const std::uint64_t> numbers, std::span<const int> signs) = 0;
  virtual void drop(std::span<const std::uint64_t> numbers) = 0;
  virtual void clear() = 0;

  [[nodiscard]] virtual Tensor accumulator() const = 0;
  virtual void set_accumulator(const Tensor& values) = 0;
  [[nodiscard]] virtual Tensor held(std::uint64_t number) const = 0;
};

/// `size` numbers of float32 or float64. Rows in memory, or factors as long as those that meet are alike.
std::unique_ptr<HeldPart> make_held_rows(std::int64_t size, at::ScalarType dtype);
std::unique_ptr<HeldPart> make_held_factors(std::int64_t size, at::ScalarType dtype);

Bytes bytes_of(const Tensor& values);
/// (2k, d) -> (k, d): of every two rows the first less the second.
Tensor differences_of_pairs(const Tensor& rows);

}  // namespace cdgrab::torch
