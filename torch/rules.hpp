// SPDX-License-Identifier: Apache-2.0
// The registry: for each kind of node that uses a parameter, how the per-example gradients of that
// parameter are read off it. One small file per family in rules/.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "contribution.hpp"
#include "graph.hpp"

namespace cdgrab::torch {

/// A node about to run: its incoming gradients, and which of its edges is asked about.
struct Moment {
  Node* node;
  std::size_t slot;
  const variable_list& gradients;
  Layout layout;  ///< of its first output
  std::int64_t batch;
  variable_list& kept;  ///< what a rule has found out for another edge of the node; empty at first

  [[nodiscard]] Tensor gradient() const { return gradients.at(0); }
  /// Of the first output that has one.
  [[nodiscard]] Tensor any_gradient() const {
    return *std::find_if(gradients.begin(), gradients.end(), [](const Tensor& g) { return g.defined(); });
  }
  /// The gradient as (B, positions, the other dimensions).
  [[nodiscard]] Tensor gradient_by_example() const { return batch_first(gradient(), layout, batch); }
  /// Where the batch is in a saved input of the node. Throws InvariantError if it cannot be followed into it.
  [[nodiscard]] Layout layout_of_input(const Tensor& input, std::size_t slot_of_input) const;
  /// A saved input as (B, positions, the other dimensions).
  [[nodiscard]] Tensor input_by_example(const Tensor& input, std::size_t slot_of_input) const {
    return batch_first(input, layout_of_input(input, slot_of_input), batch);
  }
};

/// What the node sends along the edge, per example: factors of a matrix, or rows of the edge's shape.
using Rule = Contribution (*)(const Moment&);

/// Null for a use that no rule covers.
Rule rule_for(const Use& use);

Contribution addmm_rule(const Moment& moment);
Contribution mm_rule(const Moment& moment);
Contribution bmm_rule(const Moment& moment);
Contribution mv_rule(const Moment& moment);
Contribution linear_rule(const Moment& moment);
Contribution convolution_rule(const Moment& moment);
Contribution embedding_rule(const Moment& moment);
Contribution index_rule(const Moment& moment);
Contribution layer_norm_rule(const Moment& moment);
Contribution group_norm_rule(const Moment& moment);
Contribution batch_norm_rule(const Moment& moment);
Contribution rms_norm_rule(const Moment& moment);
Contribution add_rule(const Moment& moment);
Contribution sub_rule(const Moment& moment);
Contribution mul_rule(const Moment& moment);
Contribution div_rule(const Moment& moment);
Contribution prelu_rule(const Moment& moment);
Contribution expand_rule(const Moment& moment);
Contribution repeat_rule(const Moment& moment);
Contribution lstm_rule(const Moment& moment);

/// Of an embedding that is the same for all examples: from (B, the entries of its output).
Factors embedding_of_rows(const Tensor& rows, Node* node);

/// Rows of a parameter that was broadcast to the shape of the node's output, from a gradient in that shape:
/// per example, summed over what the parameter does not have.
Contribution broadcast_rows(const Moment& moment, const Tensor& gradient);

/// Rows of what a node has along dimension 0, (N, numel), added up to rows of the examples.
Contribution rows_of_examples(const Moment& moment, const Tensor& rows);

/// Before a node is applied several times: what it has saved, unpacked once. Checkpointing hands a tensor out
/// once.
void keep_what_was_saved(Node* node);

/// From the edge's shape to the parameter's, through the rearrangements between.
Contribution through_chain(Contribution contribution, const Use& use);
/// Whether the way from the edge to the parameter turns a matrix over (true), leaves the entries in their
/// order (false), or does something else.
std::optional<bool> turns_matrix(const Use& use);
/// Back from the parameter's entries to the edge's shape, and from there to the matrix that the parameter's
/// factors are of; where turns_matrix() is known.
Tensor back_to_edge(const Tensor& entries, const Use& use);
Tensor matrix_of_edge(const Tensor& on_edge, const Use& use, const Factors& like);

}  // namespace cdgrab::torch
