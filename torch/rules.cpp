// SPDX-License-Identifier: Apache-2.0
#include "rules.hpp"

#include <fmt/format.h>

#include <unordered_map>

#include "cdgrab/error.hpp"

namespace cdgrab::torch {
namespace {

/// Rows of `shape`, seen through one node on the way to the parameter; `shape` becomes the node's input's.
Tensor rearrange(const Tensor& rows, Node* node, std::vector<std::int64_t>& shape) {
  const std::int64_t b = rows.size(0);
  const auto below = edge_shape(node, 0);
  std::vector<std::int64_t> full = {b};
  full.insert(full.end(), shape.begin(), shape.end());
  Tensor shaped = rows.view(full);
  const std::string name = node->name();
  if (name == "TBackward0") shaped = shaped.dim() == 3 ? shaped.transpose(1, 2) : shaped;
  if (name == "TransposeBackward0") {
    const auto* swap = static_cast<nodes::TransposeBackward0*>(node);
    const auto rank = static_cast<std::int64_t>(shape.size());
    const auto up = [rank](std::int64_t dim) { return (dim < 0 ? dim + rank : dim) + 1; };
    shaped = shaped.transpose(up(swap->dim0), up(swap->dim1));
  }
  if (name == "PermuteBackward0") {
    // Output dimension k is input dimension dims[k]; the gradient goes the other way.
    const auto& dims = static_cast<nodes::PermuteBackward0*>(node)->dims;
    std::vector<std::int64_t> inverse(dims.size() + 1);
    for (std::size_t k = 0; k < dims.size(); ++k) {
      const std::int64_t dim = dims[k] < 0 ? dims[k] + static_cast<std::int64_t>(dims.size()) : dims[k];
      inverse[static_cast<std::size_t>(dim) + 1] = static_cast<std::int64_t>(k) + 1;
    }
    shaped = shaped.permute(inverse);
  }
  if (name == "ExpandBackward0") {
    std::vector<std::int64_t> target = {b};
    target.resize(full.size() - below.size(), 1);
    target.insert(target.end(), below.begin(), below.end());
    shaped = at::sum_to(shaped, target);
  }
  if ((name == "SliceBackward0" || name == "SelectBackward0") && at::IntArrayRef(shape) != below) {
    std::vector<Tensor> whole;
    for (std::int64_t i = 0; i < b; ++i) whole.push_back((*node)({shaped.select(0, i)}).at(0));
    shaped = at::stack(whole);
  }
  shape.assign(below.begin(), below.end());
  return shaped.reshape({b, -1});
}

bool swaps(Node* node) { return node->name() == "TBackward0" || node->name() == "TransposeBackward0"; }

}  // namespace

Tensor Moment::input_by_example(const Tensor& input, std::size_t slot_of_input) const {
  const auto place = place_in_input(node, slot_of_input, input.sizes(), gradient().sizes(), layout, batch);
  if (!place || !*place)
    throw InvariantError(
        "observe", fmt::format("the batch is not in the input of {} that its rule reads", node->name()));
  return batch_first(input, **place, batch);
}

Contribution whole_gradient(const Moment& moment) {
  variable_list gradients = moment.gradients;
  const Tensor sent = (*moment.node)(std::move(gradients)).at(moment.slot);
  // As the engine does with what a node returns for an input that was broadcast.
  return Contribution::of_rows(at::sum_to(sent, edge_shape(moment.node, moment.slot)).reshape({1, -1}));
}

Contribution through_chain(Contribution contribution, const Use& use) {
  if (!contribution.is_rows()) {
    // A matrix stays one under casts, copies, views that keep its shape and expansions that the rule
    // has summed over already; transposes swap its factors.
    const bool matrix = use.parameter.dim() == 2;
    bool odd = false;
    for (Node* node : use.chain) odd = odd != swaps(node);
    if (matrix && !(odd && contribution.is_lookup())) return odd ? contribution.transposed() : contribution;
    contribution = Contribution::of_rows(contribution.rows());
  }
  const auto edge = edge_shape(use.node, use.slot);
  std::vector<std::int64_t> shape(edge.begin(), edge.end());
  Tensor rows = contribution.rows();
  for (Node* node : use.chain) rows = rearrange(rows, node, shape);
  return Contribution::of_rows(rows);
}

Contribution broadcast_rows(const Moment& moment, const Tensor& gradient) {
  // (B, the output's dimensions but the batch's): what shares the batch's dimension is summed over.
  const Tensor summed = batch_first(gradient, moment.layout, moment.batch).sum(1);
  const at::IntArrayRef shape = edge_shape(moment.node, moment.slot);
  std::vector<std::int64_t> target = {moment.batch};
  const std::int64_t rank = gradient.dim();
  for (std::int64_t dim = 0; dim < rank; ++dim) {
    if (dim == moment.layout.dim) continue;
    const std::int64_t own = dim - (rank - static_cast<std::int64_t>(shape.size()));
    target.push_back(own < 0 ? 1 : shape[static_cast<std::size_t>(own)]);
  }
  return Contribution::of_rows(at::sum_to(summed, target).reshape({moment.batch, -1}));
}

Rule rule_for(const std::string& node) {
  static const std::unordered_map<std::string, Rule> kRules = {
      {"AddmmBackward0", addmm_rule},
      {"MmBackward0", mm_rule},
      {"BmmBackward0", bmm_rule},
      {"LinearBackward0", linear_rule},
      {"ConvolutionBackward0", convolution_rule},
      {"EmbeddingBackward0", embedding_rule},
      {"NativeLayerNormBackward0", layer_norm_rule},
      {"NativeGroupNormBackward0", group_norm_rule},
      {"NativeBatchNormBackward0", batch_norm_rule},
      {"FusedRmsNormBackward0", rms_norm_rule},
      {"AddBackward0", add_rule},
      {"SubBackward0", sub_rule},
      {"MulBackward0", mul_rule},
      {"DivBackward0", div_rule},
  };
  const auto found = kRules.find(node);
  return found == kRules.end() ? nullptr : found->second;
}

}  // namespace cdgrab::torch
