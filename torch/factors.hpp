// SPDX-License-Identifier: Apache-2.0
// The per-example gradients of one use of a parameter, unformed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "autograd.hpp"

namespace cdgrab::torch {

/// The gradients of one use of an m x n parameter, unformed: example i's is left_i^T right_i, with left
/// (B, T, m) and right (B, T, n). In a lookup the rows of left_i are unit vectors, given by their indices
/// (B, T).
struct Factors {
  Tensor left;
  Tensor indices;  ///< instead of left
  Tensor right;
  /// Set if `right` is kept in a smaller form: makes the factor of some examples from theirs, by putting its
  /// numbers, or zeros, into other places.
  std::function<Tensor(const Tensor&)> expand;
  /// May be set with `expand`: what that makes of `right` times a matrix (n, r), as (B, T, r); and its
  /// transpose times weights (B, T, r), summed over the examples, as (n, r). Neither makes the larger form.
  std::function<Tensor(const Tensor& right, const Tensor& matrix)> project;
  std::function<Tensor(const Tensor& right, const Tensor& weights)> pull;
  /// May be set with `expand`: writes the rows (B, m, n), of float32, times alpha, from the two factors as
  /// they are kept, or from some columns of the left one. It does not make the larger form either.
  std::function<void(const Tensor& left, const Tensor& right, double alpha, const Tensor& rows)> form;
  std::int64_t positions = 0;  ///< T
  std::int64_t m = 0;
  std::int64_t n = 0;

  static Factors of_matrix(Tensor left, Tensor right);
  static Factors of_lookup(Tensor indices, Tensor right, std::int64_t m);
  static Factors of_expanded(Tensor left, Tensor right, std::int64_t n,
                             std::function<Tensor(const Tensor&)> expand);

  [[nodiscard]] bool is_lookup() const { return indices.defined(); }
  [[nodiscard]] std::int64_t batch() const { return right.size(0); }
  /// What products are made of; `right` may be kept in less precision.
  [[nodiscard]] at::TensorOptions options() const { return (is_lookup() ? right : left).options(); }
  /// Those of examples [begin, end), as they are kept; and expanded.
  [[nodiscard]] Factors narrowed(std::int64_t begin, std::int64_t end) const;
  [[nodiscard]] Factors examples(std::int64_t begin, std::int64_t end) const;
  /// Those of some examples, in this order; (k) numbers.
  [[nodiscard]] Factors select(const Tensor& index) const;
  /// Rows or columns [begin, end) of the parameter; expanded. A lookup's positions are as many as the example
  /// with the most inside needs.
  [[nodiscard]] Factors rows(std::int64_t begin, std::int64_t end) const;
  [[nodiscard]] Factors columns(std::int64_t begin, std::int64_t end) const;
  /// Columns and rows change places; not for a lookup.
  [[nodiscard]] Factors transposed() const;
  /// The examples of all, which are of one kind; positions that some lack are zero.
  [[nodiscard]] static Factors cat(std::vector<Factors> all);

  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] bool has_shape_of(const Factors& other) const { return m == other.m && n == other.n; }
  /// Multiplications: of forming all rows, and of cross().
  [[nodiscard]] double operations_of_forming() const;
  [[nodiscard]] double operations_of_cross(const Factors& other) const;

  /// rows = beta * rows + alpha * left^T right, for the parameter's rows [first, first + rows.size(1)); rows
  /// is (B, count, n). A beta of 0 means that they hold nothing yet, or zeros for a lookup.
  void add_rows(const Tensor& rows, std::int64_t first, double beta, double alpha) const;
  /// (B, B'): products with those of another batch's examples, for a parameter of the same shape.
  [[nodiscard]] Tensor cross(const Factors& other) const;
  /// (B).
  [[nodiscard]] Tensor squared_norms() const;
  /// total[i] += the product with a matrix (m, n); total is (B).
  void add_inner(const Tensor& matrix, const Tensor& total) const;
  /// matrix += sum_i weights[i] * (gradient of example i).
  void add_to(Tensor& matrix, const Tensor& weights) const;
};

/// (B) against a tensor with the examples first.
Tensor along_examples(const Tensor& values, const Tensor& like);

/// (B): of rows (B, d), without a copy of them.
Tensor squares_of_rows(const Tensor& rows);

/// Calls visit(begin, end) so that `bytes_each` of them stay within what an intermediate result may take.
template <class Visit>
void in_slices(std::int64_t count, std::int64_t bytes_each, Visit visit) {
  constexpr std::int64_t kScratchBytes = std::int64_t{8} << 20;
  const std::int64_t step = std::max<std::int64_t>(1, kScratchBytes / std::max<std::int64_t>(bytes_each, 1));
  for (std::int64_t begin = 0; begin < count; begin += step) visit(begin, std::min(begin + step, count));
}

}  // namespace cdgrab::torch
