// SPDX-License-Identifier: Apache-2.0
// A copy of an epoch's vectors, for what cannot be had from inner products taken once: the greedy
// order and the herding bound. units x dim numbers of float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cdgrab/herding.hpp"
#include "cdgrab/permutation.hpp"

namespace cdgrab {

class State;

class RowRecord {
 public:
  explicit RowRecord(std::size_t units) : put_(units) {}

  /// The first row sets the length of all.
  template <class T>
  void put(Index unit, const T* row, std::size_t dim);
  void clear();

  /// 0 before the first row.
  [[nodiscard]] std::size_t dim() const { return dim_; }
  [[nodiscard]] bool has(Index unit) const { return put_[unit] != 0; }
  [[nodiscard]] const double* row(Index unit) const { return rows_.data() + std::size_t{unit} * dim_; }
  /// The units of `order` that were put and are finite.
  [[nodiscard]] std::vector<Index> seen_of(std::span<const Index> order) const;
  [[nodiscard]] HerdingBound bound(std::span<const Index> order) const;

  void save(State& state) const;
  void load(const State& state);

 private:
  static constexpr std::uint8_t kFinite = 1;
  static constexpr std::uint8_t kNotFiniteRow = 2;

  std::size_t dim_ = 0;
  std::vector<double> rows_;
  std::vector<std::uint8_t> put_;  ///< per unit: since clear(), one of the two
};

}  // namespace cdgrab
