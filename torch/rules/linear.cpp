// SPDX-License-Identifier: Apache-2.0
// Matrix products: out = left right, whichever of the two is the parameter, and the bias that is added.
#include "labels.hpp"
#include "rules.hpp"

namespace cdgrab::torch {
namespace {

/// Examples with unlike numbers of positions: left_i^T right_i at once, without filling them up. Of (entries,
/// positions, m) and (entries, positions, n), those of an example next to each other.
Contribution unequal_products(const Groups& groups, const Tensor& left, const Tensor& right) {
  const auto type = left.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto batch = static_cast<std::int64_t>(groups.counts.size());
  Tensor rows = at::zeros({batch, left.size(2), right.size(2)}, left.options().dtype(type));
  std::int64_t begin = 0;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t count = groups.counts[static_cast<std::size_t>(b)];
    const auto own = [&](const Tensor& all) { return all.narrow(0, begin, count).flatten(0, 1).to(type); };
    if (count > 0) rows[b].addmm_(own(left).t(), own(right));
    begin += count;
  }
  return Contribution::of_rows(rows.flatten(1));
}

/// The sum over an example's positions of outer products of what arrives, g, and an input x. Where a list
/// says whose the positions are, as rows if these are no larger than factors filled up to the longest.
Contribution outer_products(const Moment& moment, const Tensor& x, const Layout& at_x, bool g_is_left) {
  const Tensor g = moment.gradient();
  if (moment.layout.labels != nullptr) {
    const Groups groups =
        groups_of(examples_along(moment.layout, g.size(moment.layout.dim), moment.batch), moment.batch, g);
    const auto entries = [&](const Tensor& all, std::int64_t dim) {
      const Tensor moved = all.movedim(dim, 0).index_select(0, groups.order);
      return moved.unsqueeze(1).flatten(1, -2);
    };
    const Tensor of_g = entries(g, moment.layout.dim);
    const Tensor of_x = entries(x, at_x.dim);
    const std::int64_t longest = groups.longest() * of_g.size(1);
    if (longest * (of_g.size(2) + of_x.size(2)) >= of_g.size(2) * of_x.size(2))
      return g_is_left ? unequal_products(groups, of_g, of_x) : unequal_products(groups, of_x, of_g);
  }
  const auto flat = [&](const Tensor& all, const Layout& at) {
    const Tensor by_example = batch_first(all, at, moment.batch);
    return by_example.dim() == 3 ? by_example : by_example.flatten(1, -2);
  };
  const Tensor of_g = flat(g, moment.layout);
  const Tensor of_x = flat(x, at_x);
  return Contribution::of_factors(g_is_left ? Factors::of_matrix(of_g, of_x)
                                            : Factors::of_matrix(of_x, of_g));
}

/// The gradient of the right factor is left^T G, of the left one G right^T: both are sums over positions
/// of an outer product.
Contribution product_rule(const Moment& moment, bool parameter_is_right, const Tensor& other,
                          std::size_t slot_of_other, double scale) {
  return outer_products(moment, scale == 1.0 ? other : other * scale,
                        moment.layout_of_input(other, slot_of_other), !parameter_is_right);
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
  const Tensor x = saved(node->input_, moment.node);
  return outer_products(moment, x, moment.layout_of_input(x, 0), /*g_is_left=*/true);
}

}  // namespace cdgrab::torch
