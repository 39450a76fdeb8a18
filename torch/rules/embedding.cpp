// SPDX-License-Identifier: Apache-2.0
// Embeddings: a matrix product with unit vectors.
#include "cdgrab/error.hpp"
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

/// table[indices]: the same without a padding index, and from the end where an index is negative.
Contribution index_rule(const Moment& moment) {
  auto* node = static_cast<nodes::IndexBackward0*>(moment.node);
  const std::int64_t b = moment.batch;
  const Tensor given = saved(node->indices_.front(), moment.node);
  if (given.scalar_type() != at::kLong && given.scalar_type() != at::kInt)
    throw InvariantError("observe", "a mask says which entries of a parameter are used; give their indices");
  const std::int64_t m = node->self_sym_sizes.front().expect_int();
  const Tensor indices = batch_first(given.to(at::kLong).remainder(m), moment.layout, b).reshape({b, -1});
  return Contribution::of_factors(
      Factors::of_lookup(indices, moment.gradient_by_example().reshape({b, indices.size(1), -1}), m));
}

Factors embedding_of_rows(const Tensor& rows, Node* node) {
  auto* embedding = static_cast<nodes::EmbeddingBackward0*>(node);
  const Tensor indices = saved(embedding->indices_, node).reshape({1, -1}).expand({rows.size(0), -1});
  return lookup(*embedding, indices, rows.view({rows.size(0), indices.size(1), -1}));
}

}  // namespace cdgrab::torch
