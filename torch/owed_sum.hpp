// SPDX-License-Identifier: Apache-2.0
// Layers that an example passes once: its gradient is one product of two vectors, and what the batch's add up
// to can be had with the update of a register, in one pass over both.
#pragma once

#include <utility>

#include "factors.hpp"

namespace cdgrab::torch {

/// matrix += sum_i weights[i] * (gradient of example i), by what the gradients add up to, (m, n). False, and
/// nothing is done, where weights have more than two values or the gradients are none of a covered layer.
bool add_by_sum(const Factors& factors, const Tensor& weights, const Tensor& sum, Tensor& matrix);

/// That sum, which a node has left to us: it comes with the first update, or else by itself.
class OwedSum {
 public:
  /// Whether the gradients are products of vectors of float32 in main memory.
  static bool covers(const Factors& factors);

  explicit OwedSum(Factors factors) : factors_(std::move(factors)) {}

  [[nodiscard]] bool is_known() const { return sum_.defined(); }
  /// The update makes the sum known, too. False, and nothing is done: as above.
  bool add_to(Tensor& matrix, const Tensor& weights);
  /// (m, n).
  const Tensor& value();
  /// The same for somebody who keeps it. Nobody asks for it after.
  [[nodiscard]] Tensor take();

 private:
  Factors factors_;
  Tensor sum_;
};

}  // namespace cdgrab::torch
