// SPDX-License-Identifier: Apache-2.0
// Matrix products: out = left right, whichever of the two is the parameter, and the bias that is added.
#include "rules.hpp"

namespace cdgrab::torch {
namespace {

/// The gradient of the right factor is left^T G, of the left one G right^T: both are sums over positions
/// of an outer product.
Contribution product_rule(const Moment& moment, bool parameter_is_right, const Tensor& other,
                          std::size_t slot_of_other, double scale) {
  const Tensor g = moment.gradient_by_example();
  Tensor x = moment.input_by_example(other, slot_of_other);
  if (scale != 1.0) x = x * scale;
  return Contribution::of_factors(parameter_is_right ? Factors::of_matrix(x, g) : Factors::of_matrix(g, x));
}

}  // namespace

Contribution addmm_rule(const Moment& moment) {
  auto* node = static_cast<nodes::AddmmBackward0*>(moment.node);
  if (moment.slot == 0) {
    const double beta = node->beta.toDouble();
    return broadcast_rows(moment, beta == 1.0 ? moment.gradient() : moment.gradient() * beta);
  }
  const bool right = moment.slot == 2;
  const Tensor other = right ? saved(node->mat1_, moment.node) : saved(node->mat2_, moment.node);
  return product_rule(moment, right, other, right ? 1 : 2, node->alpha.toDouble());
}

Contribution mm_rule(const Moment& moment) {
  auto* node = static_cast<nodes::MmBackward0*>(moment.node);
  const bool right = moment.slot == 1;
  const Tensor other = right ? saved(node->self_, moment.node) : saved(node->mat2_, moment.node);
  return product_rule(moment, right, other, right ? 0 : 1, 1.0);
}

/// A parameter in a batched product has been expanded over the batch; the sum over it is taken here.
Contribution bmm_rule(const Moment& moment) {
  auto* node = static_cast<nodes::BmmBackward0*>(moment.node);
  const bool right = moment.slot == 1;
  const Tensor other = right ? saved(node->self_, moment.node) : saved(node->mat2_, moment.node);
  const auto fold_positions = [](const Tensor& t) {
    return t.reshape({t.size(0), t.size(1) * t.size(2), t.size(3)});
  };
  // (B, shared, rows, columns): the positions summed over are the output's other dimension.
  const Tensor g = moment.gradient_by_example();
  const Tensor x = moment.input_by_example(other, right ? 0 : 1);
  if (right) return Contribution::of_factors(Factors::of_matrix(fold_positions(x), fold_positions(g)));
  return Contribution::of_factors(
      Factors::of_matrix(fold_positions(g.transpose(2, 3)), fold_positions(x.transpose(2, 3))));
}

/// out = input weight^T + bias, kept as one node by some backends.
Contribution linear_rule(const Moment& moment) {
  auto* node = static_cast<nodes::LinearBackward0*>(moment.node);
  if (moment.slot == 2) return broadcast_rows(moment, moment.gradient());
  const Tensor g = moment.gradient_by_example();
  const Tensor x = moment.input_by_example(saved(node->input_, moment.node), 0);
  const auto flat = [](const Tensor& t) { return t.reshape({t.size(0), -1, t.size(-1)}); };
  return Contribution::of_factors(Factors::of_matrix(flat(g), flat(x)));
}

}  // namespace cdgrab::torch
