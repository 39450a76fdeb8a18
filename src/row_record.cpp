// SPDX-License-Identifier: Apache-2.0
#include "row_record.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cdgrab/error.hpp"
#include "cdgrab/state.hpp"
#include "kernels/kernels.hpp"

namespace cdgrab {

template <class T>
void RowRecord::put(Index unit, const T* row, std::size_t dim) {
  if (rows_.empty()) {
    dim_ = dim;
    rows_.resize(put_.size() * dim);
  }
  std::copy_n(row, dim, rows_.begin() + static_cast<std::ptrdiff_t>(std::size_t{unit} * dim));
  put_[unit] = kernels::best<T>().finite(row, dim) ? kFinite : kNotFiniteRow;
}

template void RowRecord::put<float>(Index, const float*, std::size_t);
template void RowRecord::put<double>(Index, const double*, std::size_t);

void RowRecord::clear() { std::fill(put_.begin(), put_.end(), std::uint8_t{0}); }

std::vector<Index> RowRecord::seen_of(std::span<const Index> order) const {
  std::vector<Index> seen;
  std::copy_if(order.begin(), order.end(), std::back_inserter(seen),
               [this](Index unit) { return put_[unit] == kFinite; });
  return seen;
}

HerdingBound RowRecord::bound(std::span<const Index> order) const {
  return herding_bound<double>(rows_, dim_, seen_of(order));
}

void RowRecord::save(State& state) const {
  state.set("record.dim", static_cast<std::int64_t>(dim_));
  state.set("record.rows", std::span<const double>(rows_));
  state.set("record.seen", std::span<const std::uint8_t>(put_));
}

void RowRecord::load(const State& state) {
  const std::int64_t dim = state.integer("record.dim");
  auto put = state.elements<std::uint8_t>("record.seen", put_.size());
  const std::size_t count = state.array("record.rows").bytes.size() / sizeof(double);
  // No product that could overflow: a dim is at most what the rows have.
  if (dim < 0 ||
      (put.empty() ? count != 0
                   : count % put.size() != 0 || count / put.size() != static_cast<std::size_t>(dim)))
    throw StateMismatch("RowRecord::load",
                        fmt::format("'record.dim' is {} and 'record.rows' has {} numbers for {} units; this "
                                    "is not a state that cdgrab wrote",
                                    dim, count, put.size()));
  rows_ = state.elements<double>("record.rows", count);
  dim_ = static_cast<std::size_t>(dim);
  put_ = std::move(put);
}

}  // namespace cdgrab
