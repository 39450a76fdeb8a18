// SPDX-License-Identifier: Apache-2.0
#include "fused.hpp"

#include <string>
#include <unordered_set>
#include <utility>

#include "rules.hpp"

namespace cdgrab::torch {

void TakenEdges::take(Node* node, std::size_t slot, Tensor gradient) {
  taken_.push_back({node, slot, {}, std::move(gradient)});
  std::swap(taken_.back().edge, edge_of(node, slot));
}

void TakenEdges::give_back(Node* node, variable_list& sent) {
  std::erase_if(taken_, [&](Taken& taken) {
    if (taken.node != node) return false;
    std::swap(taken.edge, edge_of(node, taken.slot));
    sent.at(taken.slot) = std::move(taken.gradient);
    return true;
  });
}

void TakenEdges::give_back() noexcept {
  for (Taken& taken : taken_) std::swap(taken.edge, edge_of(taken.node, taken.slot));
  taken_.clear();
}

bool is_separable(const Use& use) {
  static const std::unordered_set<std::string> kNames = {"AddmmBackward0", "MmBackward0", "LinearBackward0",
                                                         "ConvolutionBackward0"};
  return use.parameter.is_cpu() && kNames.contains(use.node->name()) && turns_matrix(use).has_value();
}

Tensor sum_on_edge(Contribution& rows, const Tensor& inverse_scales, const Use& use) {
  Tensor sum = rows.take_sum();
  if (sum.defined()) {  // all examples have one scale then
    sum = sum.flatten().mul_(inverse_scales[0].item<double>());
  } else {
    sum = at::zeros({rows.entries()}, rows.options());
    rows.add_to(sum, inverse_scales.to(sum.scalar_type()));
  }
  const auto& edge = use.node->next_edge(use.slot);
  return back_to_edge(sum, use).to(edge.function->input_metadata(edge.input_nr).dtype().toScalarType());
}

bool is_private(const Use& use) {
  Node* node = use.node->next_edge(use.slot).function.get();
  const auto is_watched = [](Node* each) {
    return !each->pre_hooks().empty() || !each->tensor_pre_hooks().empty() || !each->post_hooks().empty() ||
           each->tensor_post_acc_grad_hooks() != nullptr;
  };
  for (; node->num_outputs() > 0; node = node->next_edge(0).function.get())
    if (is_watched(node)) return false;
  return !is_watched(node);
}

}  // namespace cdgrab::torch
