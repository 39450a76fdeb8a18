// SPDX-License-Identifier: Apache-2.0
// What the samplers of one worker and of many share: losses that wait for their backward, vectors that are
// given, and rows in memory made of either.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "cdgrab/permutation.hpp"
#include "cdgrab/sampler.hpp"
#include "cdgrab/state.hpp"
#include "cdgrab/torch/turn.hpp"
#include "observation.hpp"

namespace cdgrab::torch {

/// Observed losses of one worker whose backward has not run; their examples are spoken for.
class Backwards : public std::enable_shared_from_this<Backwards> {
 public:
  using Finish = std::function<void(Observed&&, const std::vector<Index>& examples)>;

  /// Taken while a backward finishes.
  explicit Backwards(std::shared_ptr<Turn> turn) : turn_(std::move(turn)) {}

  /// `finish` is called at the end of the backward, unless forget() is called before. Throws UserError.
  void wait_for(const Tensor& loss, std::vector<Index> examples, const ObserveOptions& options, Finish finish,
                Observation::Way way);
  /// A backward that comes later finds nobody waiting for it.
  void forget() {
    waiting_.clear();
    ++generation_;
  }
  /// The oldest `count` outstanding examples that are not spoken for; outstanding(k) names the k oldest.
  std::vector<Index> oldest(std::size_t count,
                            const std::function<std::vector<Index>(std::size_t)>& outstanding);
  /// Losses that were dropped without a backward.
  [[nodiscard]] std::size_t missed() const { return missed_; }

 private:
  struct Waiting {
    std::weak_ptr<Observation> observation;
    std::vector<Index> examples;
  };

  void drop_missed();

  std::shared_ptr<Turn> turn_;
  std::list<Waiting> waiting_;
  std::uint64_t generation_ = 0;  ///< of waiting_
  std::size_t missed_ = 0;
};

/// Vectors that are given, as a backward would have left them: the k-th tensor is of the same parameter from
/// call to call.
class GivenVectors {
 public:
  /// One tensor of B x d, or one of B x .. per parameter. Throws UserError.
  Observed observed(const std::vector<Tensor>& rows, const char* where);

 private:
  const Tensor& given(std::size_t k, const Tensor& rows, const char* where);

  std::vector<Tensor> given_;
};

/// Rows in memory, whole or sketched: every parameter has its columns, in the order in which they were first
/// met; in a batch that does not depend on one, zeros.
class RowMatrix {
 public:
  /// (B, d), contiguous, float64 if a parameter is. Throws UserError for parameters that the first batch had
  /// not.
  Tensor of(const Observed& observed, const char* where);

 private:
  struct Columns {
    Tensor parameter;
    std::int64_t count;
  };
  std::vector<Columns> columns_;
};

/// visit(Rows<float>) or visit(Rows<double>).
template <class Visit>
void visit_rows(const Tensor& matrix, Visit visit) {
  const auto count = static_cast<std::size_t>(matrix.size(0));
  const auto dim = static_cast<std::size_t>(matrix.size(1));
  if (matrix.scalar_type() == at::kDouble)
    visit(Rows<double>{matrix.const_data_ptr<double>(), count, dim});
  else
    visit(Rows<float>{matrix.const_data_ptr<float>(), count, dim});
}

/// One row: the .grad of each, zero where there is none.
std::vector<Tensor> rows_of_gradients(const std::vector<Tensor>& parameters);
/// Throws UserError if batches of this size (0: not known) hold parts of units.
void require_whole_units(std::size_t batch, std::size_t unit, const char* where);
/// Throws UserError unless units are single examples.
void require_examples(std::size_t unit, const char* where);
/// Throws UserError unless they are as many.
void require_one_each(std::int64_t rows, std::size_t examples, const char* where);
std::vector<Index> as_names(const std::vector<std::size_t>& examples);

/// A state in a torch archive. Reading throws FileError for an archive without one, or with a tensor in its
/// place that is not one row of bytes.
void write_state(const State& state, ::torch::serialize::OutputArchive& archive);
State read_state(::torch::serialize::InputArchive& archive);

}  // namespace cdgrab::torch
