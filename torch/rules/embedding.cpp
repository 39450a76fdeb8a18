// SPDX-License-Identifier: Apache-2.0
// Embeddings: a matrix product with unit vectors.
#include "rules.hpp"

namespace cdgrab::torch {

/// `indices` (B, T) and the gradients of what was looked up (B, T, n).
static Factors lookup(const nodes::EmbeddingBackward0& node, const Tensor& indices, Tensor gradients) {
  const std::int64_t padding = node.padding_idx.expect_int();
  if (padding >= 0) gradients = gradients * indices.ne(padding).unsqueeze(-1);
  return Factors::of_lookup(indices, gradients, node.weight_sym_argsize_0.expect_int());
}

Contribution embedding_rule(const Moment& moment) {
  auto* node = static_cast<nodes::EmbeddingBackward0*>(moment.node);
  const std::int64_t b = moment.batch;
  const Tensor indices = batch_first(saved(node->indices_, moment.node), moment.layout, b);
  const Tensor g = moment.gradient_by_example();
  return Contribution::of_factors(lookup(*node, indices.reshape({b, -1}), g.reshape({b, -1, g.size(-1)})));
}

Factors embedding_of_rows(const Tensor& rows, Node* node) {
  auto* embedding = static_cast<nodes::EmbeddingBackward0*>(node);
  const Tensor indices = saved(embedding->indices_, node).reshape({1, -1}).expand({rows.size(0), -1});
  return lookup(*embedding, indices, rows.view({rows.size(0), indices.size(1), -1}));
}

}  // namespace cdgrab::torch
