// SPDX-License-Identifier: Apache-2.0
#include "rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "cdgrab/error.hpp"

namespace cdgrab::torch {
namespace {

/// Output dimension k of the node is input dimension result[k]; empty for one that keeps their order.
std::vector<std::int64_t> permutation_of(Node* node) {
  const std::string name = node->name();
  const auto rank = static_cast<std::int64_t>(output_shape(node).size());
  const auto up = [rank](std::int64_t dim) { return dim < 0 ? dim + rank : dim; };
  std::vector<std::int64_t> dims;
  if (name == "PermuteBackward0") {
    for (const std::int64_t dim : static_cast<nodes::PermuteBackward0*>(node)->dims) dims.push_back(up(dim));
    return dims;
  }
  if (name != "TBackward0" && name != "TransposeBackward0") return {};
  for (std::int64_t dim = 0; dim < rank; ++dim) dims.push_back(dim);
  if (name == "TBackward0") {
    std::reverse(dims.begin(), dims.end());
  } else {
    const auto* swap = static_cast<nodes::TransposeBackward0*>(node);
    std::swap(dims[static_cast<std::size_t>(up(swap->dim0))], dims[static_cast<std::size_t>(up(swap->dim1))]);
  }
  return dims;
}

template <class N>
void keep_saved(Node* any) {
  auto* node = static_cast<N*>(any);
  if constexpr (requires { node->self_; }) saved(node->self_, any);
  if constexpr (requires { node->other_; }) saved(node->other_, any);
  if constexpr (requires { node->mat2_; }) saved(node->mat2_, any);
  if constexpr (requires { node->vec_; }) saved(node->vec_, any);
  if constexpr (requires { node->g_; }) saved(node->g_, any);
  if constexpr (requires { node->v_; }) saved(node->v_, any);
  if constexpr (requires { node->result_; }) saved(node->result_, any);
  if constexpr (requires { node->result1_; }) saved(node->result1_, any);
  if constexpr (requires { node->i1_; }) saved(node->i1_, any);
  if constexpr (requires { node->i2_; }) saved(node->i2_, any);
  if constexpr (requires { node->i3_; }) saved(node->i3_, any);
}

/// One example at a time, through the node itself.
Tensor apply_each(const Tensor& shaped, const Step& step, at::IntArrayRef below) {
  keep_what_was_saved(step.node);
  std::vector<Tensor> sent;
  for (std::int64_t i = 0; i < shaped.size(0); ++i) {
    variable_list gradients(step.node->num_inputs());
    gradients[step.output] = shaped.select(0, i);
    const Tensor one = (*step.node)(std::move(gradients)).at(step.slot);
    sent.push_back(one.defined() ? at::sum_to(one, below) : at::zeros(below, shaped.options()));
  }
  return at::stack(sent);
}

/// Rows of `shape`, seen through one node on the way to the parameter; `shape` becomes the node's input's.
Tensor rearrange(const Tensor& rows, const Step& step, std::vector<std::int64_t>& shape) {
  Node* node = step.node;
  const std::int64_t b = rows.size(0);
  const auto below = edge_shape(node, step.slot);
  std::vector<std::int64_t> full = {b};
  full.insert(full.end(), shape.begin(), shape.end());
  Tensor shaped = rows.view(full);
  const std::string name = node->name();
  if (const auto dims = permutation_of(node); !dims.empty()) {
    std::vector<std::int64_t> inverse(dims.size() + 1);
    for (std::size_t k = 0; k < dims.size(); ++k)
      inverse[static_cast<std::size_t>(dims[k]) + 1] = static_cast<std::int64_t>(k) + 1;
    shaped = shaped.permute(inverse);
  }
  if (name == "ExpandBackward0") {
    std::vector<std::int64_t> target = {b};
    target.resize(full.size() - below.size(), 1);
    target.insert(target.end(), below.begin(), below.end());
    shaped = at::sum_to(shaped, target);
  }
  const bool piece = name == "SliceBackward0" || name == "SelectBackward0";
  if (!rearranges(node) || (piece && at::IntArrayRef(shape) != below))
    shaped = apply_each(shaped, step, below);
  shape.assign(below.begin(), below.end());
  return shaped.reshape({b, -1});
}

/// The dimensions that matter for the order of the entries.
std::vector<std::int64_t> without_ones(at::IntArrayRef shape) {
  std::vector<std::int64_t> dims;
  for (const std::int64_t dim : shape)
    if (dim != 1) dims.push_back(dim);
  return dims;
}

}  // namespace

std::optional<bool> turns_matrix(const Use& use) {
  bool turned = false;
  for (const Step& step : use.chain) {
    Node* node = step.node;
    if (!rearranges(node)) return std::nullopt;
    const std::string name = node->name();
    const auto above = output_shape(node);
    const auto below = edge_shape(node, 0);
    const auto dims = permutation_of(node);
    if (name == "SliceBackward0" || name == "SelectBackward0" || name == "ExpandBackward0") {
      if (without_ones(above) != without_ones(below)) return std::nullopt;
    } else if (dims.empty()) {
      if (turned && without_ones(above) != without_ones(below)) return std::nullopt;
    } else {
      std::vector<std::int64_t> order;
      for (std::size_t k = 0; k < dims.size(); ++k)
        if (above[k] != 1) order.push_back(dims[k]);
      if (std::is_sorted(order.begin(), order.end())) continue;
      if (order.size() != 2) return std::nullopt;
      turned = !turned;
    }
  }
  return turned;
}

// Of the nodes that weights are commonly made with, and of those without a rule.
void keep_what_was_saved(Node* node) {
  static const std::unordered_map<std::string, void (*)(Node*)> kKinds = {
      {"WeightNormInterfaceBackward0", keep_saved<nodes::WeightNormInterfaceBackward0>},
      {"MulBackward0", keep_saved<nodes::MulBackward0>},
      {"DivBackward0", keep_saved<nodes::DivBackward0>},
      {"PowBackward0", keep_saved<nodes::PowBackward0>},
      {"NormBackward1", keep_saved<nodes::NormBackward1>},
      {"LinalgVectorNormBackward0", keep_saved<nodes::LinalgVectorNormBackward0>},
      {"ExpBackward0", keep_saved<nodes::ExpBackward0>},
      {"SqrtBackward0", keep_saved<nodes::SqrtBackward0>},
      {"TanhBackward0", keep_saved<nodes::TanhBackward0>},
      {"SigmoidBackward0", keep_saved<nodes::SigmoidBackward0>},
      {"SoftplusBackward0", keep_saved<nodes::SoftplusBackward0>},
      {"MmBackward0", keep_saved<nodes::MmBackward0>},
      {"MvBackward0", keep_saved<nodes::MvBackward0>},
      {"TrilinearBackward0", keep_saved<nodes::TrilinearBackward0>},
  };
  if (const auto found = kKinds.find(node->name()); found != kKinds.end()) found->second(node);
}

Layout Moment::layout_of_input(const Tensor& input, std::size_t slot_of_input) const {
  const auto place = place_in_input(node, slot_of_input, input.sizes(), gradient().sizes(), layout, batch);
  if (!place || !*place)
    throw InvariantError(
        "observe", fmt::format("the batch is not in the input of {} that its rule reads", node->name()));
  return **place;
}

Contribution through_chain(Contribution contribution, const Use& use) {
  if (!contribution.is_rows()) {
    const auto turned = turns_matrix(use);
    if (turned == false) return contribution;
    const Factors& f = contribution.factors();
    if (turned == true && !f.is_lookup()) return Contribution::of_factors(f.transposed());
    contribution.form();
  }
  const auto edge = edge_shape(use.node, use.slot);
  std::vector<std::int64_t> shape(edge.begin(), edge.end());
  Tensor rows = contribution.rows();
  if (rows.size(1) != c10::multiply_integers(shape))
    throw InvariantError("observe",
                         fmt::format("the rule of {} gives {} numbers and the edge has {}", use.node->name(),
                                     rows.size(1), c10::multiply_integers(shape)));
  for (const Step& step : use.chain) {
    // Position embeddings: the same indices for every example.
    if (step.node->name() == "EmbeddingBackward0" && &step == &use.chain.back())
      return Contribution::of_factors(embedding_of_rows(rows, step.node));
    rows = rearrange(rows, step, shape);
  }
  return Contribution::of_rows(rows);
}

Tensor back_to_edge(const Tensor& entries, const Use& use) {
  const at::IntArrayRef shape = edge_shape(use.node, use.slot);
  if (!turns_matrix(use).value()) return entries.reshape(shape);
  const auto dims = without_ones(shape);
  return entries.reshape({dims[1], dims[0]}).t().reshape(shape);
}

Tensor matrix_of_edge(const Tensor& on_edge, const Use& use, const Factors& like) {
  return turns_matrix(use).value() ? on_edge.reshape({like.n, like.m}).t()
                                   : on_edge.reshape({like.m, like.n});
}

Contribution rows_of_examples(const Moment& moment, const Tensor& rows) {
  if (moment.layout.dim != 0)
    throw InvariantError(
        "observe",
        fmt::format("the rule of {} does not find the examples along its first axis", moment.node->name()));
  return Contribution::of_rows(sum_by_example(rows, moment.layout, moment.batch));
}

Contribution broadcast_rows(const Moment& moment, const Tensor& gradient) {
  // (B, the output's dimensions but the batch's): what shares the batch's dimension is summed over.
  const Tensor summed = sum_by_example(gradient, moment.layout, moment.batch);
  const at::IntArrayRef shape = edge_shape(moment.node, moment.slot);
  std::vector<std::int64_t> target = {moment.batch};
  const std::int64_t rank = gradient.dim();
  for (std::int64_t dim = 0; dim < rank; ++dim) {
    if (dim == moment.layout.dim) continue;
    const std::int64_t own = dim - (rank - static_cast<std::int64_t>(shape.size()));
    target.push_back(own < 0 ? 1 : shape[static_cast<std::size_t>(own)]);
  }
  const Tensor rows = summed.sizes() == target ? summed : at::sum_to(summed, target);
  return Contribution::of_rows(rows.dim() == 2 ? rows : rows.reshape({moment.batch, -1}));
}

Rule rule_for(const Use& use) {
  static const std::unordered_map<std::string, Rule> kRules = {
      {"AddmmBackward0", addmm_rule},
      {"MmBackward0", mm_rule},
      {"BmmBackward0", bmm_rule},
      {"MvBackward0", mv_rule},
      {"LinearBackward0", linear_rule},
      {"ConvolutionBackward0", convolution_rule},
      {"EmbeddingBackward0", embedding_rule},
      {"IndexBackward0", index_rule},
      {"NativeLayerNormBackward0", layer_norm_rule},
      {"NativeGroupNormBackward0", group_norm_rule},
      {"NativeBatchNormBackward0", batch_norm_rule},
      {"FusedRmsNormBackward0", rms_norm_rule},
      {"AddBackward0", add_rule},
      {"SubBackward0", sub_rule},
      {"MulBackward0", mul_rule},
      {"DivBackward0", div_rule},
      {"PreluKernelBackward0", prelu_rule},
      {"ExpandBackward0", expand_rule},
      {"RepeatBackward0", repeat_rule},
      {"MkldnnRnnLayerBackward0", lstm_rule},
  };
  const std::string name = use.node->name();
  if (name == "EmbeddingBackward0" && static_cast<nodes::EmbeddingBackward0*>(use.node)->scale_grad_by_freq)
    return nullptr;
  if (name == "IndexBackward0" && static_cast<nodes::IndexBackward0*>(use.node)->indices_.size() != 1)
    return nullptr;
  const auto found = kRules.find(name);
  return found == kRules.end() ? nullptr : found->second;
}

}  // namespace cdgrab::torch
