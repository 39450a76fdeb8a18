// SPDX-License-Identifier: Apache-2.0
// Layers that an example passes once: its gradient is one product of two vectors. By kernels of our own, to
// which the zeros of a layer with ReLU behind it are no work, and which have what the batch's gradients add
// up to with the update of a register, in one pass over both.
#pragma once

#include <utility>

#include "factors.hpp"

namespace cdgrab::torch {

/// Whether the gradients are products of vectors of float32 in main memory.
bool are_single_products(const Factors& factors);

/// total[i] += the product of example i's gradient with a matrix (m, n). False, and nothing is done, where
/// that is for a BLAS.
bool add_inner(const Factors& factors, const Tensor& matrix, const Tensor& total);

/// matrix += sum_i weights[i] * (gradient of example i), by what the gradients add up to, (m, n). False, and
/// nothing is done, where weights have more than two values or the gradients are none of these.
bool add_by_sum(const Factors& factors, const Tensor& weights, const Tensor& sum, Tensor& matrix);

/// That sum, which a node has left to us: it comes with the first update, or part by part with the rows of
/// all examples, or else by itself. The gradients may be of any layer for the latter two.
class OwedSum {
 public:
  explicit OwedSum(Factors factors) : factors_(std::move(factors)) {}

  [[nodiscard]] bool is_known() const { return sum_.defined(); }
  /// The update makes the sum known, too. False, and nothing is done: as above.
  bool add_to(Tensor& matrix, const Tensor& weights);
  /// Where the gradients of some examples are to be added, times a scale that is the same for all; (m, n).
  [[nodiscard]] const Tensor& part(double scale);
  /// So many have been. With the last of them the sum is known.
  void take_in(std::int64_t examples);
  /// (m, n).
  const Tensor& value();
  /// The same for somebody who keeps it. Nobody asks for it after.
  [[nodiscard]] Tensor take();

 private:
  Factors factors_;
  Tensor sum_;
  Tensor parts_;
  double scale_ = 1.0;  ///< of the parts
  std::int64_t taken_in_ = 0;
};

}  // namespace cdgrab::torch
