// SPDX-License-Identifier: Apache-2.0
// Runs a sampler over fixed rows, batch by batch.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cdgrab/sampler.hpp"

namespace cdgrab::cases {

/// The rows of these units, one after the other.
template <class T>
std::vector<T> gather(const std::vector<T>& rows, std::size_t dim, std::span<const Index> units) {
  std::vector<T> out;
  out.reserve(units.size() * dim);
  for (const Index unit : units) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(unit * dim);
    out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(dim));
  }
  return out;
}

/// Hands out up to `count` units and observes them; returns what was handed out.
template <class T>
std::vector<Index> step(Sampler& sampler, const std::vector<T>& rows, std::size_t dim, std::size_t count) {
  const std::span<const Index> handed = sampler.next(count);
  std::vector<Index> units(handed.begin(), handed.end());
  const std::vector<T> batch = gather(rows, dim, std::span<const Index>(units));
  sampler.observe(Rows<T>{batch.data(), units.size(), dim});
  return units;
}

}  // namespace cdgrab::cases
