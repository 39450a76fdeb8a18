// SPDX-License-Identifier: Apache-2.0
#include "contribution.hpp"

#include <utility>

namespace cdgrab::torch {
namespace {

/// (B, T, n) -> (B*T, n).
Tensor flat(const Tensor& factor) {
  return factor.reshape({factor.size(0) * factor.size(1), factor.size(2)});
}

}  // namespace

Contribution Contribution::of_rows(Tensor rows) {
  Contribution contribution;
  contribution.rows_ = std::move(rows);
  return contribution;
}

Contribution Contribution::of_factors(Tensor left, Tensor right) {
  Contribution contribution;
  contribution.m_ = left.size(2);
  contribution.left_ = std::move(left);
  contribution.right_ = std::move(right);
  return contribution;
}

Contribution Contribution::of_lookup(Tensor indices, Tensor right, std::int64_t m) {
  Contribution contribution;
  contribution.m_ = m;
  contribution.indices_ = std::move(indices);
  contribution.right_ = std::move(right);
  return contribution;
}

/// Multiplications for a block. By factors: B^2 T^2 (m + n) for the Gram matrix and 2 B T m n for the
/// product with one register and its update (a lookup needs no m in either). By rows: B T m n to form
/// them, and 2 B m n that only read memory, each worth about 16 (bench/observe).
bool Contribution::prefers_factors() const {
  if (is_rows()) return false;
  const double b = static_cast<double>(right_.size(0));
  const double t = static_cast<double>(right_.size(1));
  const double m = static_cast<double>(m_);
  const double n = static_cast<double>(right_.size(2));
  const double reads = 32.0 * b * m * n;
  if (is_lookup()) return b * b * t * t * n < reads;
  return b * b * t * t * (m + n) + 2.0 * b * t * m * n < b * t * m * n + reads;
}

Tensor Contribution::rows(double alpha) const {
  if (is_rows()) return alpha == 1.0 ? rows_ : rows_ * alpha;
  const std::int64_t b = batch();
  if (!is_lookup()) {
    Tensor rows = at::empty({b, m_, right_.size(2)}, right_.options());
    return at::baddbmm_out(rows, rows, left_.transpose(1, 2), right_, 0.0, alpha).view({b, -1});
  }
  const Tensor rows = at::zeros({b * m_, right_.size(2)}, right_.options());
  const Tensor first = at::arange(b, indices_.options()).mul_(m_).unsqueeze(1);
  rows.index_add_(0, (indices_ + first).reshape({-1}), flat(right_), alpha);
  return rows.view({b, -1});
}

Tensor Contribution::gram() const {
  if (is_rows()) return at::mm(rows_, rows_.t());
  const std::int64_t b = batch();
  const std::int64_t t = right_.size(1);
  const Tensor r = flat(right_);
  Tensor pairs = at::mm(r, r.t());
  if (is_lookup()) {
    const Tensor i = indices_.reshape({-1});
    pairs.mul_(i.unsqueeze(0).eq(i.unsqueeze(1)));
  } else {
    const Tensor l = flat(left_);
    pairs.mul_(at::mm(l, l.t()));
  }
  return t == 1 ? pairs : pairs.view({b, t, b, t}).sum(at::IntArrayRef{1, 3});
}

Tensor Contribution::inner(const Tensor& direction) const {
  if (is_rows()) return at::mv(rows_, direction.reshape({-1}));
  const Tensor r = flat(right_);
  const Tensor matrix = direction.reshape({m_, r.size(1)});
  const Tensor seen =
      is_lookup() ? matrix.index_select(0, indices_.reshape({-1})) : at::mm(flat(left_), matrix);
  return seen.mul(r).view({batch(), -1}).sum(1);
}

void Contribution::add_to(Tensor& to, const Tensor& weights) const {
  if (is_rows()) {
    to.view({-1}).addmv_(rows_.t(), weights);
    return;
  }
  Tensor matrix = to.view({m_, right_.size(2)});
  const Tensor weighted = flat(right_ * weights.view({-1, 1, 1}));
  if (is_lookup())
    matrix.index_add_(0, indices_.reshape({-1}), weighted);
  else
    matrix.addmm_(flat(left_).t(), weighted);
}

Contribution Contribution::scaled(double alpha) const {
  Contribution out = *this;
  Tensor& factor = is_rows() ? out.rows_ : out.right_;
  if (alpha != 1.0) factor = factor * alpha;
  return out;
}

Contribution Contribution::scaled(const Tensor& scale) const {
  Contribution out = *this;
  Tensor& factor = is_rows() ? out.rows_ : out.right_;
  std::vector<std::int64_t> shape(static_cast<std::size_t>(factor.dim()), 1);
  shape[0] = factor.size(0);
  factor = factor * scale.view(shape);
  return out;
}

Contribution Contribution::masked(const Tensor& keep) const {
  const auto clean = [&](const Tensor& t) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(t.dim()), 1);
    shape[0] = t.size(0);
    return at::where(keep.view(shape), t, at::zeros({}, t.options()));
  };
  Contribution out = *this;
  if (is_rows()) out.rows_ = clean(rows_);
  if (left_.defined()) out.left_ = clean(left_);
  if (right_.defined()) out.right_ = clean(right_);
  return out;
}

}  // namespace cdgrab::torch
