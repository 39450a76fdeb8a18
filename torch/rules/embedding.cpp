// SPDX-License-Identifier: Apache-2.0
// Embeddings: a matrix product with unit vectors.
#include "rules.hpp"

namespace cdgrab::torch {

Contribution embedding_rule(const Moment& moment) {
  auto* node = static_cast<nodes::EmbeddingBackward0*>(moment.node);
  const Tensor indices = saved(node->indices_, moment.node);
  Tensor g = moment.gradient();
  const std::int64_t padding = node->padding_idx.expect_int();
  if (padding >= 0) g = g * indices.ne(padding).unsqueeze(-1);
  const Tensor by_example = batch_first(g, moment.layout, moment.batch);
  const Tensor indices_by_example = batch_first(indices, moment.layout, moment.batch);
  const std::int64_t b = moment.batch;
  return Contribution::of_factors(Factors::of_lookup(indices_by_example.reshape({b, -1}),
                                                     by_example.reshape({b, -1, g.size(-1)}),
                                                     node->weight_sym_argsize_0.expect_int()));
}

}  // namespace cdgrab::torch
