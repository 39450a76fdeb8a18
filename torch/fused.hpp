// SPDX-License-Identifier: Apache-2.0
// Gradients that a node need not compute because the observation has them: the node's edge is taken off while
// it runs, and what it would have sent along the edge is put into what it sends.
#pragma once

#include <vector>

#include "contribution.hpp"
#include "graph.hpp"

namespace cdgrab::torch {

/// Edges that are off their nodes, for some of a backward at most: its end must give back all, however it
/// ends.
class TakenEdges {
 public:
  /// The node, which is about to run, will not compute what goes along the edge.
  void take(Node* node, std::size_t slot, Tensor gradient);
  /// The node has run: its edges are back, and what is to go along them is in `sent`.
  void give_back(Node* node, variable_list& sent);
  /// All that are off.
  void give_back() noexcept;

 private:
  struct Taken {
    Node* node;
    std::size_t slot;
    ::torch::autograd::Edge edge;
    Tensor gradient;
  };
  std::vector<Taken> taken_;
};

/// Whether the node of a use computes what goes along the edge for its own sake, and that reaches the
/// parameter with nothing but its entries rearranged.
bool is_separable(const Use& use);

/// What that node would send along its edge, from the gradients of the examples as rows, each times the
/// inverse of its scale (B). If these know their sum, it is taken from them.
Tensor sum_on_edge(Contribution& rows, const Tensor& inverse_scales, const Use& use);

/// Whether nobody is called when a gradient goes from the edge to the parameter, who might write to it.
bool is_private(const Use& use);

}  // namespace cdgrab::torch
