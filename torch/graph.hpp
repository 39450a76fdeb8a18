// SPDX-License-Identifier: Apache-2.0
// The autograd graph below a loss: which nodes use a parameter, and where the batch is in each of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cdgrab/torch/parameter_set.hpp"
#include "layout.hpp"

namespace cdgrab::torch {

/// A node on the way to a parameter: a gradient arrives at `output` and is sent along edge `slot`.
struct Step {
  Node* node = nullptr;
  std::size_t output = 0;
  std::size_t slot = 0;
};

/// One use of a parameter: the gradient that `node` sends along edge `slot` reaches it through `chain`: nodes
/// that only rearrange (transposes, views, casts), or work on what is the same for all examples (a weight
/// norm, position embeddings).
struct Use {
  Node* node = nullptr;
  std::size_t slot = 0;
  std::vector<Step> chain;
  Tensor parameter;
  Layout layout;  ///< of the node's output
};

struct Graph {
  Node* root = nullptr;
  std::uint32_t output = 0;  ///< of the root that the loss is
  std::vector<Node*> nodes;  ///< consumers before producers
  std::vector<Use> uses;
  bool followed = false;  ///< the batch, to every node
};

/// The uses of the parameters that count, not knowing yet where the batch is.
Graph find_uses(const Tensor& loss, const ParameterSet& parameters);

/// For a batch of one: the edges that end in a parameter that counts, as uses without a chain or a layout;
/// those of a penalty, in which no example has a share, left out.
Graph find_edges(const Tensor& loss, const ParameterSet& parameters);

struct BatchOptions {
  std::int64_t batch = 0;
  /// The dimension of the loss's input that holds the examples, counted before (B, T) was flattened; -1:
  /// found out, or refused if two are possible.
  std::int64_t batch_axis = -1;
  /// Of each row of an axis of this length the example; empty: not named.
  std::vector<std::int64_t> example_of_row = {};
};

/// Gives every use its layout. A parameter that was copied to every example is used by the node that copies
/// it; what is the same for all examples is used by the nodes where it meets them; one that never does (a
/// penalty) is dropped: no example has a share in it. Throws UserError with the parameters that cannot be
/// attributed and a remedy.
void place_batch(Graph& graph, const BatchOptions& options, const ParameterSet& parameters);

/// The shape of the gradient that `node` sends along edge `slot`.
at::IntArrayRef edge_shape(Node* node, std::size_t slot);
/// The shape of the node's first output.
at::IntArrayRef output_shape(Node* node, std::size_t output = 0);

}  // namespace cdgrab::torch
