// SPDX-License-Identifier: Apache-2.0
// The parts of LibTorch that the adapter stands on; also its precompiled header.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/torch.h>

namespace cdgrab::torch {

using at::Tensor;
using ::torch::autograd::AccumulateGrad;
using ::torch::autograd::Node;
using ::torch::autograd::variable_list;
namespace nodes = ::torch::autograd::generated;

/// A tensor that `node` saved in the forward pass; only while the node has not run yet.
inline Tensor saved(::torch::autograd::SavedVariable& variable, Node* node) {
  Tensor value = variable.unpack(c10::intrusive_ptr<Node>::reclaim_copy(node));
  // Checkpointing hands a tensor out once: from here on the node has it as any other saved tensor.
  if (variable.has_hooks())
    variable =
        ::torch::autograd::SavedVariable(value.grad_fn().get() == node ? value.detach() : value, false);
  return value;
}

/// Null if the node is none. To be asked before a name is: that of a leaf is made anew every time.
inline const AccumulateGrad* as_leaf(Node* node) { return dynamic_cast<const AccumulateGrad*>(node); }

/// An edge of a graph that is made already. Node::set_next_edge() is for those being made: it numbers the
/// nodes anew, which must not happen while an edge is off for a moment.
inline ::torch::autograd::Edge& edge_of(Node* node, std::size_t slot) {
  return const_cast<::torch::autograd::Edge&>(node->next_edge(slot));
}

}  // namespace cdgrab::torch
