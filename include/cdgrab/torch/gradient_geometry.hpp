// SPDX-License-Identifier: Apache-2.0
// Per-example gradients of a loss as numbers: products with each other, with those of another loss and with
// directions, norms, weighted sums. For people who want those and not an order (docs/gradients.md).
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cdgrab/torch/parameter_set.hpp"
#include "cdgrab/torch/turn.hpp"

namespace cdgrab::torch {

/// Which vectors are meant when a loss is observed.
struct ObserveOptions {
  /// The loss is the sum over the examples, not their mean.
  bool sum = false;
  /// The axis of the examples in what the loss reduces, counted before (B, T) or (T, B) was flattened into
  /// one; -1: found out, or refused if two are possible.
  std::int64_t batch_axis = -1;
  /// For batches that are one axis of rows, of which each example has some: packed sequences, ragged batches,
  /// graphs. Row r of an axis of this length belongs to example example_of_row[r] of the batch, from 0;
  /// integers. Undefined: no such axis, or the graph tells (docs/observe.md, rows).
  at::Tensor example_of_row = {};
  /// Which parameters count.
  ParameterSet parameters = {};
  /// Bytes of per-example gradients that may be formed and held until the signs fall. Past it they are formed
  /// later, for some examples at a time, or stay unformed (docs/observe.md, what is held).
  std::size_t budget = std::size_t{512} << 20;
  /// Refuse nodes that no rule covers, instead of running them once more for every example.
  bool strict = false;
  /// Rows of the batch, its last ones, that fill it up with examples which count elsewhere: the loss is of
  /// them too, but they have no vectors. The batch that is named is of the rows before.
  std::int64_t repeats = 0;
};

/// Call observe(loss, batch), then loss.backward(); then ask. Vectors are those of docs/math.md, section 6.
class GradientGeometry {
 public:
  GradientGeometry();

  /// Throws UserError for a loss whose examples cannot be told apart, naming every parameter concerned.
  void observe(const at::Tensor& loss, std::int64_t batch, const ObserveOptions& options = {});

  /// The same and the backward at once, leaving the graph and every .grad as they are.
  void compute(const at::Tensor& loss, std::int64_t batch, const ObserveOptions& options = {});

  /// (B, B): products of the vectors. This and all that follow throw UserError before a backward has run.
  [[nodiscard]] at::Tensor gram() const;
  /// (B, B'): products with the vectors of another loss of the same model. A parameter that only one of the
  /// two depends on adds nothing; throws UserError if they share none.
  [[nodiscard]] at::Tensor cross(const GradientGeometry& other) const;
  /// (B).
  [[nodiscard]] at::Tensor norms() const;
  /// (B): products with one tensor per parameter, in the order of parameters(). (B, K) if all of them have
  /// one dimension more than their parameters, the first one: K directions at once.
  [[nodiscard]] at::Tensor inner(const std::vector<at::Tensor>& direction) const;
  /// The same by names(); more than those are allowed, and count nothing.
  [[nodiscard]] at::Tensor inner(const std::vector<std::pair<std::string, at::Tensor>>& direction) const;
  /// One tensor per parameter, of its shape and type: sum_i weights[i] * (vector of example i). An example
  /// of weight zero is left out, even if its vector is not finite.
  [[nodiscard]] std::vector<at::Tensor> weighted_sum(const at::Tensor& weights) const;

  /// What a caller from several threads holds during a call; the backward of an observed loss does by itself.
  [[nodiscard]] Turn& turn();

  /// The parameters that the loss depends on, in the order in which they were met.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  /// Of each of them the nodes that its gradients were read off; "by example: " stands before one that no
  /// rule covers.
  [[nodiscard]] std::vector<std::string> rules() const;
  /// Their names, from ObserveOptions::parameters; empty where they are not known.
  [[nodiscard]] std::vector<std::string> names() const;
  /// The parameters whose names match a pattern as ParameterSet has it: a layer's share of all of the above.
  /// Nothing is computed or copied. Throws UserError if no name is known, or none matches.
  [[nodiscard]] GradientGeometry part(std::string_view pattern) const;
  /// (B, d): the vectors themselves, parameter by parameter.
  [[nodiscard]] at::Tensor rows() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace cdgrab::torch
