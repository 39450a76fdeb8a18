// SPDX-License-Identifier: Apache-2.0
// Examples that do not follow each other at equal distances along a dimension (packed sequences, ragged
// batches, examples that are routed): a list says which example every entry belongs to.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layout.hpp"

namespace cdgrab::torch {

/// Of every entry along a dimension, the example, or kNobody.
using Examples = std::vector<std::int64_t>;

/// Of a dimension of this length.
Examples examples_along(const Layout& layout, std::int64_t length, std::int64_t batch);

/// Without a list, if equal distances say the same.
Layout layout_of(std::int64_t dim, Examples examples, std::int64_t batch);

/// The one example that all entries belong to, those of nobody left out.
std::optional<std::int64_t> only_example(const Examples& examples);

/// `to` = `example`, unless it is another's already: false then. What is nobody's changes nothing.
bool assign(std::int64_t& to, std::int64_t example);

/// What two consumers of a tensor of this shape know of it. Nullopt if they contradict each other.
std::optional<Layout> merged(const Layout& a, const Layout& b, at::IntArrayRef shape, std::int64_t batch);

/// Along one of the dimensions `shape`, if the examples of its entries, in their flat order, depend on that
/// one only: its number and the examples along it.
std::optional<std::pair<std::size_t, Examples>> along_one(const Examples& flat, at::IntArrayRef shape);

/// The entries of a dimension by example: the places of those of example 0, then of example 1, ..
struct Groups {
  Tensor order;  ///< (entries that are somebody's)
  std::vector<std::int64_t> counts;
  [[nodiscard]] std::int64_t longest() const;
};
Groups groups_of(const Examples& examples, std::int64_t batch, const Tensor& like);

/// (B, longest, ..): the dimension `dim` by example, in front; zeros behind those of a shorter one.
Tensor padded_by(const Groups& groups, const Tensor& tensor, std::int64_t dim);

}  // namespace cdgrab::torch
