// SPDX-License-Identifier: Apache-2.0
// Where the batch is in a tensor, and how it moves from the output of a node to its inputs.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd.hpp"

namespace cdgrab::torch {

/// Entry i along `dim` belongs to example (i / inner) % batch. In (B, T, C) that is dim 0, inner 1; in
/// the same flattened to (B*T, C), dim 0, inner T; flattened from (T, B, C), dim 0, inner 1.
struct Layout {
  std::int64_t dim = 0;
  std::int64_t inner = 1;
  bool operator==(const Layout&) const = default;
};

/// A layout, or that a tensor is the same for all examples.
using Place = std::optional<Layout>;

/// The places the batch could have in a tensor of this shape.
std::vector<Layout> possible_layouts(at::IntArrayRef shape, std::int64_t batch);

/// The place in the input at `slot`, of shape `input`, when the output of `node`, of shape `output`,
/// has the batch at `layout`. Nullopt: impossible, or the node is not one we know how to follow.
std::optional<Place> place_in_input(Node* node, std::size_t slot, at::IntArrayRef input,
                                    at::IntArrayRef output, const Layout& layout, std::int64_t batch);

/// The layout of a node's first output, when output number `output` has the batch at `layout`; and back.
Layout in_first_output(Node* node, std::size_t output, const Layout& layout);
Layout in_output(Node* node, std::size_t output, const Layout& layout);

/// A compiled region: one node, which does not bear being applied again.
bool is_compiled(Node* node);

/// Nodes that have one input and only rearrange it, or take a piece: what is behind them is still the
/// parameter.
bool rearranges(Node* node);

/// (B, positions, the other dimensions): the batch to the front, what shares its dimension behind it.
Tensor batch_first(const Tensor& tensor, const Layout& layout, std::int64_t batch);

}  // namespace cdgrab::torch
