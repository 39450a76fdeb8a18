// SPDX-License-Identifier: Apache-2.0
// Orders as plain vectors of indices, and the checks that make one a permutation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace cdgrab {

/// An example, or a unit of examples. 32 bits: an order of 100 million examples takes 400 MB, not 800.
using Index = std::uint32_t;

/// One value is kept free to mean "none".
inline constexpr std::size_t kMaxExamples = std::numeric_limits<Index>::max();

/// 0, 1, .., n-1.
std::vector<Index> identity_order(std::size_t n);

/// True if `order` holds each of 0..order.size()-1 once.
bool is_permutation(std::span<const Index> order);

/// Throws UserError naming the first offending entry unless `order` is a permutation of 0..n-1.
void require_permutation(std::span<const Index> order, std::size_t n, std::string_view where);

/// inverse[order[t]] = t; `order` must be a permutation.
std::vector<Index> inverse_order(std::span<const Index> order);

/// 64-bit hash of the entries in sequence, the same on every machine.
std::uint64_t order_hash(std::span<const Index> order);

}  // namespace cdgrab
