// SPDX-License-Identifier: Apache-2.0
// Where the batch is in a tensor, and how it moves from the output of a node to its inputs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "autograd.hpp"

namespace cdgrab::torch {

/// An entry that no gradient arrives at belongs to no example.
constexpr std::int64_t kNobody = -1;

/// Entry i along `dim` belongs to row (i / inner) % rows. Rows are the examples of the batch, or, with
/// `labels`, those that it lists (labels.hpp). In (B, T, C) that is dim 0, inner 1; in the same flattened to
/// (B*T, C), dim 0, inner T; flattened from (T, B, C), dim 0, inner 1.
struct Layout {
  std::int64_t dim = 0;
  std::int64_t inner = 1;
  std::shared_ptr<const std::vector<std::int64_t>> labels = nullptr;
  /// A piece that is all of one example: as part of a dimension that has other examples too.
  std::shared_ptr<const Layout> otherwise = nullptr;

  [[nodiscard]] std::int64_t rows(std::int64_t batch) const {
    return labels == nullptr ? batch : static_cast<std::int64_t>(labels->size());
  }
  bool operator==(const Layout& other) const {
    const bool same = labels == other.labels;
    return dim == other.dim && inner == other.inner &&
           (same || (labels != nullptr && other.labels != nullptr && *labels == *other.labels));
  }
};

/// A layout, or that a tensor is the same for all examples.
using Place = std::optional<Layout>;

/// The places the batch could have in a tensor of this shape.
std::vector<Layout> possible_layouts(at::IntArrayRef shape, std::int64_t batch);

/// The place in the input at `slot`, of shape `input`, when the output of `node`, of shape `output`,
/// has the batch at `layout`. Nullopt: impossible, or the node is not one we know how to follow.
/// `piece`: which of the outputs, where they are pieces of the input.
std::optional<Place> place_in_input(Node* node, std::size_t slot, at::IntArrayRef input,
                                    at::IntArrayRef output, const Layout& layout, std::int64_t batch,
                                    std::size_t piece = 0);

/// A node with several outputs that are pieces of its input, which may belong to other examples each.
bool gives_pieces(Node* node);

/// The layout of a node's first output, when output number `output` has the batch at `layout`; and back.
Layout in_first_output(Node* node, std::size_t output, const Layout& layout);
Layout in_output(Node* node, std::size_t output, const Layout& layout);

/// A compiled region: one node, which does not bear being applied again.
bool is_compiled(Node* node);

/// Nodes that have one input and only rearrange it, or take a piece: what is behind them is still the
/// parameter.
bool rearranges(Node* node);

/// (B, positions, the other dimensions): the batch to the front, what shares its dimension behind it. Where
/// examples have not as many positions each, zeros fill up the shorter ones.
Tensor batch_first(const Tensor& tensor, const Layout& layout, std::int64_t batch);

/// (B, the other dimensions): the same summed over the positions, in float32 or better.
Tensor sum_by_example(const Tensor& tensor, const Layout& layout, std::int64_t batch);

}  // namespace cdgrab::torch
