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

/// A matrix of the parameter's for each entry of dimension 0, in which the examples are not: there every
/// example would have a parameter of its own.
Contribution bmm_rule(const Moment& moment) {
  auto* node = static_cast<nodes::BmmBackward0*>(moment.node);
  const bool right = moment.slot == 1;
  const Tensor other = right ? saved(node->self_, moment.node) : saved(node->mat2_, moment.node);
  // (B, positions, the two dimensions that the examples are not in).
  const Tensor g = moment.gradient_by_example();
  const Tensor x = moment.input_by_example(other, right ? 0 : 1);
  // (B, positions, K, m) and (B, positions, K, n): the examples are in the rows of a left product or the
  // columns of a right one.
  const Tensor left = right ? x : g;
  const Tensor other_side = right ? g : x;
  if (left.size(2) == 1)
    return Contribution::of_factors(Factors::of_matrix(left.squeeze(2), other_side.squeeze(2)));
  return Contribution::of_rows(at::einsum("bpkm,bpkn->bkmn", {left, other_side}).reshape({moment.batch, -1}));
}

/// A vector on the right, as a matrix of one row.
Contribution mv_rule(const Moment& moment) {
  auto* node = static_cast<nodes::MvBackward0*>(moment.node);
  const Tensor x = moment.input_by_example(saved(node->self_, moment.node), 0);
  return Contribution::of_factors(Factors::of_matrix(moment.gradient_by_example().unsqueeze(-1), x));
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
