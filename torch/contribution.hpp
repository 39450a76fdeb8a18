// SPDX-License-Identifier: Apache-2.0
// The per-example gradients of one parameter, formed or not.
#pragma once

#include <cstdint>

#include "autograd.hpp"

namespace cdgrab::torch {

/// Rows, (B, numel); or two factors, the gradient of example i being left_i^T right_i, with left (B, T, m)
/// and right (B, T, n) for a parameter of m x n; or a lookup, where the rows of left_i are unit vectors,
/// given by their indices (B, T).
class Contribution {
 public:
  static Contribution of_rows(Tensor rows);
  static Contribution of_factors(Tensor left, Tensor right);
  static Contribution of_lookup(Tensor indices, Tensor right, std::int64_t m);

  [[nodiscard]] bool is_rows() const { return rows_.defined(); }
  [[nodiscard]] bool is_lookup() const { return indices_.defined(); }
  [[nodiscard]] std::int64_t batch() const { return is_rows() ? rows_.size(0) : right_.size(0); }
  /// Columns and rows change places; factors only.
  [[nodiscard]] Contribution transposed() const { return of_factors(right_, left_); }
  /// Whether products by factors cost less than forming the rows.
  [[nodiscard]] bool prefers_factors() const;

  /// (B, numel), times alpha; formed if they are not yet.
  [[nodiscard]] Tensor rows(double alpha = 1.0) const;
  /// (B, B).
  [[nodiscard]] Tensor gram() const;
  /// (B): products with a vector of the parameter's shape.
  [[nodiscard]] Tensor inner(const Tensor& direction) const;
  /// to += sum_i weights[i] * (gradient of example i); `to` is contiguous and has the parameter's numel.
  void add_to(Tensor& to, const Tensor& weights) const;
  /// Every example's gradient times a number, or each times its own.
  [[nodiscard]] Contribution scaled(double alpha) const;
  [[nodiscard]] Contribution scaled(const Tensor& scale) const;
  /// The same with the examples where `keep` is false set to zero, whatever they hold.
  [[nodiscard]] Contribution masked(const Tensor& keep) const;

 private:
  Tensor rows_;
  Tensor left_;
  Tensor indices_;
  Tensor right_;
  std::int64_t m_ = 0;
};

}  // namespace cdgrab::torch
