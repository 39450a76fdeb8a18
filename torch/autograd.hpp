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
inline Tensor saved(const ::torch::autograd::SavedVariable& variable, Node* node) {
  return variable.unpack(c10::intrusive_ptr<Node>::reclaim_copy(node));
}

}  // namespace cdgrab::torch
