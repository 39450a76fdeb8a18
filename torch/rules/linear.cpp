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

/// Products along dimension 0. Where the examples are there, the parameter has been expanded over them, and
/// the other entries of that dimension are positions; else it has a matrix of its own for each entry.
Contribution bmm_rule(const Moment& moment) {
  auto* node = static_cast<nodes::BmmBackward0*>(moment.node);
  const bool right = moment.slot == 1;
  const Tensor other = right ? saved(node->self_, moment.node) : saved(node->mat2_, moment.node);
  // (B, positions, the two dimensions that the examples are not in).
  const Tensor g = moment.gradient_by_example();
  const Tensor x = moment.input_by_example(other, right ? 0 : 1);
  if (moment.layout.dim == 0) {
    const auto fold_positions = [](const Tensor& t) { return t.reshape({t.size(0), -1, t.size(3)}); };
    if (g.size(1) > 1) {  // (B, P, m, n), one for each of the positions
      const Tensor rows = right ? at::matmul(x.transpose(2, 3), g) : at::matmul(g, x.transpose(2, 3));
      return Contribution::of_rows(rows.reshape({moment.batch, -1}));
    }
    if (right) return Contribution::of_factors(Factors::of_matrix(fold_positions(x), fold_positions(g)));
    return Contribution::of_factors(
        Factors::of_matrix(fold_positions(g.transpose(2, 3)), fold_positions(x.transpose(2, 3))));
  }
  // (B, positions, K, m) and (B, positions, K, n): the examples are in the rows of a left product or the
  // columns of a right one.
  const Tensor left = right ? x : g;
  const Tensor other_side = right ? g : x;
  if (left.size(2) == 1)
    return Contribution::of_factors(Factors::of_matrix(left.squeeze(2), other_side.squeeze(2)));
  return Contribution::of_rows(at::einsum("bpkm,bpkn->bkmn", {left, other_side}).reshape({moment.batch, -1}));
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
