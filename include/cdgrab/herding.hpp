// SPDX-License-Identifier: Apache-2.0
// The herding bound of an order: max over t of | sum_{j<=t} (x_order(j) - mean) | (docs/math.md, section 4).
#pragma once

#include <cstddef>
#include <span>

#include "cdgrab/permutation.hpp"

namespace cdgrab {

struct HerdingBound {
  double l2 = 0.0;
  double linf = 0.0;
};

/// The bound of visiting `rows` (row by row, `dim` long) in `order`, which may leave rows out or
/// repeat them; the mean is that of the rows visited. Rows that are not finite are passed over.
template <class T>
HerdingBound herding_bound(std::span<const T> rows, std::size_t dim, std::span<const Index> order);

}  // namespace cdgrab
