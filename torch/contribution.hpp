// SPDX-License-Identifier: Apache-2.0
// The per-example gradients of one parameter, formed or not.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "single_products.hpp"

namespace cdgrab::torch {

/// Rows (B, m * n), and uses of the parameter that are still factors, added up and times a scale. Which of
/// the two it is never changes a result by more than rounding.
class Contribution {
 public:
  static Contribution of_rows(Tensor rows);
  static Contribution of_factors(Factors factors);

  [[nodiscard]] bool is_rows() const { return factors_.empty(); }
  /// Whether some of it is.
  [[nodiscard]] bool has_rows() const { return rows_.defined(); }
  [[nodiscard]] std::int64_t batch() const;
  /// The part of it that is rows, without the scales; undefined: zero.
  [[nodiscard]] const Tensor& formed() const { return rows_; }
  /// These rows in its place, in the same scales.
  [[nodiscard]] Contribution with_rows(Tensor rows) const;
  /// Numbers per example.
  [[nodiscard]] std::int64_t entries() const;
  /// Type and device of every result, unless said otherwise.
  [[nodiscard]] at::TensorOptions options() const;
  /// Of a contribution that is one use as factors.
  [[nodiscard]] const Factors& factors() const { return factors_.front(); }
  /// The uses that are factors.
  [[nodiscard]] const std::vector<Factors>& uses() const { return factors_; }

  /// Another use of the same parameter.
  void add(Contribution other);
  /// Every example's gradient times a number, or each times its own (B).
  void scale(double alpha) { alpha_ *= alpha; }
  void scale(const Tensor& per_example) { scale_ = per_example; }
  /// (B), float64: all of these together.
  [[nodiscard]] Tensor scales() const;
  /// Of a contribution of factors: times `more` (B), and all scales become part of the left factors, or of
  /// the right ones; a lookup has no left.
  void fold_scales(const Tensor& more, bool into_left);

  /// Whether the products and the update by factors cost more than forming rows, if there are none yet, and
  /// reading them: from memory, or where they may stay in the cache.
  [[nodiscard]] bool saves_work_by_rows() const;
  [[nodiscard]] bool prefers_rows() const;
  /// Whether rows of so many bytes stay in a core's own cache.
  [[nodiscard]] static bool stays_in_cache(std::size_t bytes);
  /// Bytes held as factors, and what the rows would take.
  [[nodiscard]] std::size_t factor_bytes() const;
  [[nodiscard]] std::size_t row_bytes() const;
  /// In this type: mixed precision computes in less than products should be taken in.
  void to(at::ScalarType dtype);
  /// Several uses become one of as many positions, where they are plain products.
  void merge();
  /// Becomes rows, without the factors; `with_sum`: and knows what they add up to, where that takes no pass
  /// of its own.
  void form(bool with_sum = false);
  /// Becomes rows that lie in `memory`: (B or more, m * n), contiguous. What they add up to is part of
  /// `owed`, unless that is null.
  void form_in(const Tensor& memory, OwedSum* owed);
  /// What the gradients add up to without any scale, if it is known: a tensor of the parameter's entries,
  /// which is not copied and counts as long as nobody writes to it.
  void know_sum(const Tensor& sum);
  /// The sum, if it is known, or undefined; of rows, for somebody who keeps it, as nobody asks for it after.
  [[nodiscard]] Tensor take_sum() { return std::exchange(sum_, Tensor()); }
  /// The same for a sum that the first update makes; of a contribution that is one use as factors.
  void owe(std::shared_ptr<OwedSum> sum) { owed_ = std::move(sum); }
  [[nodiscard]] OwedSum* owed() const { return owed_.get(); }

  /// (B, m * n), formed if they are not yet.
  [[nodiscard]] Tensor rows() const;
  /// (B, B).
  [[nodiscard]] Tensor gram() const { return cross(*this); }
  /// total (B, B + k) += gram(), and beside it inner() of k directions, of which those that are undefined are
  /// zero. If rows are formed on the way, then once.
  void add_products(const std::vector<Tensor>& directions, const Tensor& total) const;
  /// (B, B'): products with the gradients of another batch's examples for the same parameter.
  [[nodiscard]] Tensor cross(const Contribution& other) const;
  /// (B): the diagonal of gram(); rounding may take a zero below it.
  [[nodiscard]] Tensor squared_norms() const;
  /// (B): products with a vector of the parameter's shape.
  [[nodiscard]] Tensor inner(const Tensor& direction) const;
  /// to += sum_i weights[i] * (gradient of example i); `to` is contiguous and has the parameter's numel.
  void add_to(Tensor& to, const Tensor& weights) const;
  /// The same with the examples where `keep` is false set to zero, whatever they hold.
  [[nodiscard]] Contribution masked(const Tensor& keep) const;

  /// (B), float64: no coordinate of an example's gradient is larger; NaN if one is.
  [[nodiscard]] Tensor magnitude() const;
  /// Examples [begin, end), without a copy; and some, in this order; (k) numbers.
  [[nodiscard]] Contribution narrowed(std::int64_t begin, std::int64_t end) const;
  [[nodiscard]] Contribution select(const Tensor& index) const;
  /// Whether cat() can put them together: the same uses, all as factors or all as rows.
  [[nodiscard]] bool alike(const Contribution& other) const;
  /// The examples of all of them, which are alike; positions that some lack are zero.
  [[nodiscard]] static Contribution cat(const std::vector<Contribution>& all);
  /// Whether both are rows, to be multiplied with the same scales.
  [[nodiscard]] bool is_rows_in_scales_of(const Contribution& other) const;

 private:
  [[nodiscard]] Tensor slice(std::int64_t begin, std::int64_t end, const Factors& like, double alpha) const;
  void fill(const Tensor& out, std::int64_t begin, const Factors& like, double alpha) const;
  /// For slice() again and again: factors that each time would be expanded are, where that takes little
  /// beside the rows.
  [[nodiscard]] Contribution expanded() const;
  [[nodiscard]] Tensor unscaled_cross(const Contribution& other) const;
  [[nodiscard]] Tensor cross_by_slices(const Contribution& other) const;
  [[nodiscard]] Tensor cross_by_rows_of(const Contribution& other) const;
  [[nodiscard]] Tensor unscaled_squared_norms() const;
  /// Of a contribution that has factors.
  [[nodiscard]] bool crosses_by_slices(const Contribution& other) const;
  [[nodiscard]] Tensor products_by_slices(const std::vector<Tensor>& directions) const;
  [[nodiscard]] bool is_one_use() const { return factors_.size() == 1 && !rows_.defined(); }
  [[nodiscard]] double operations_of_cross_by_slices(const Contribution& other) const;
  [[nodiscard]] double operations_of_forming() const;

  /// One use, of which rows are matrix products times one number.
  [[nodiscard]] bool is_plain_product() const {
    return is_one_use() && !scale_.defined() && !factors().is_lookup() && !factors().expand;
  }
  /// All scales become part of rows and factors.
  void fold();
  bool form_with_sum();
  /// The sum, if it is known and nobody has written to it; or undefined.
  [[nodiscard]] Tensor known_sum() const;
  void forget_sum();
  /// Adds what is left of the weights once each has the same taken off, which has been added by the known
  /// sum. False, and nothing is done, where that saves nothing.
  bool add_by_sum(Tensor& to, const Tensor& weights) const;

  Tensor rows_;          ///< undefined: zero
  bool formed_ = false;  ///< rows_ were made here, and may be added to
  std::vector<Factors> factors_;
  double alpha_ = 1.0;
  Tensor scale_;
  Tensor sum_;  ///< undefined: not known
  std::int64_t sum_version_ = 0;
  std::shared_ptr<OwedSum> owed_;  ///< null: nobody waits for it
};

/// The rows (batch, sum of numel) of several parameters; one that is null has zeros.
Tensor side_by_side(std::int64_t batch, const std::vector<const Contribution*>& gradients,
                    const std::vector<std::int64_t>& numel, at::ScalarType dtype);

}  // namespace cdgrab::torch
