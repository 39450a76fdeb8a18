// SPDX-License-Identifier: Apache-2.0
// One order at work on vectors in memory: what `cdgrab herd` runs side by side.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "cdgrab/geometry.hpp"
#include "cdgrab/herding.hpp"
#include "cdgrab/npy.hpp"
#include "cdgrab/permutation.hpp"
#include "cdgrab/sampler.hpp"
#include "cdgrab/spec.hpp"
#include "interrupt.hpp"

namespace cdgrab::cli {

/// The mean of each run of `unit` consecutive rows; the last run may be short.
template <class T>
Matrix<T> average_units(const Matrix<T>& rows, std::size_t unit) {
  Matrix<T> out{(rows.rows + unit - 1) / unit, rows.dim, {}};
  out.values.reserve(out.rows * out.dim);
  std::vector<double> sum(rows.dim);
  for (std::size_t first = 0; first < rows.rows; first += unit) {
    const std::size_t last = std::min(first + unit, rows.rows);
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::size_t i = first * rows.dim; i < last * rows.dim; ++i) {
      sum[i % rows.dim] += static_cast<double>(rows.values[i]);
    }
    for (const double s : sum) out.values.push_back(static_cast<T>(s / static_cast<double>(last - first)));
  }
  return out;
}

template <class T>
class Contender {
 public:
  /// `rows` must outlive this.
  Contender(const Spec& spec, const Matrix<T>& rows, SamplerOptions options)
      : rows_(rows),
        units_(spec.unit > 1 ? average_units(rows, spec.unit) : Matrix<T>{}),
        sampler_(rows.rows, spec, std::move(options)) {
    if (spec.name == OrderName::kScore) sampler_.set_scores(lengths());
  }

  [[nodiscard]] const Sampler& sampler() const { return sampler_; }

  /// Of the current epoch's order, over the examples.
  [[nodiscard]] HerdingBound bound() const {
    const std::size_t unit = sampler_.spec().unit;
    if (unit == 1) return herding_bound<T>(rows_.values, rows_.dim, sampler_.order());
    std::vector<Index> examples;
    examples.reserve(rows_.rows);
    for (const Index u : sampler_.order()) {
      const std::size_t first = u * unit;
      const std::size_t last = std::min(first + unit, rows_.rows);
      for (std::size_t i = first; i < last; ++i) examples.push_back(static_cast<Index>(i));
    }
    return herding_bound<T>(rows_.values, rows_.dim, examples);
  }

  /// One epoch, `batch` examples at a time; tick(examples done) after each.
  template <class Tick>
  void run_round(std::size_t batch, const Tick& tick) {
    const Spec& spec = sampler_.spec();
    const bool looks = spec.balances() || spec.name == OrderName::kGreedy;
    std::size_t done = 0;
    sampler_.begin();
    for (auto examples = sampler_.next(batch); !examples.empty(); examples = sampler_.next(batch)) {
      check_interrupt();
      done += examples.size();
      if (looks) observe(examples);
      tick(done);
    }
    sampler_.end_epoch();
  }

 private:
  const Matrix<T>& vectors() const { return sampler_.spec().unit > 1 ? units_ : rows_; }

  /// A unit is observed when its last example has been handed out.
  void observe(std::span<const Index> examples) {
    const std::size_t unit = sampler_.spec().unit;
    const Matrix<T>& from = vectors();
    block_.clear();
    std::size_t count = 0;
    for (const std::size_t example : examples) {
      if ((example + 1) % unit != 0 && example + 1 != rows_.rows) continue;
      const auto row = from.values.begin() + static_cast<std::ptrdiff_t>(example / unit * from.dim);
      block_.insert(block_.end(), row, row + static_cast<std::ptrdiff_t>(from.dim));
      ++count;
    }
    if (count > 0) sampler_.observe(Rows<T>{block_.data(), count, from.dim});
  }

  /// |x| per unit; a vector that is not finite comes last.
  [[nodiscard]] std::vector<double> lengths() const {
    const Matrix<T>& from = vectors();
    std::vector<double> out(from.rows, 0.0);
    for (std::size_t i = 0; i < from.values.size(); ++i) {
      const auto x = static_cast<double>(from.values[i]);
      out[i / from.dim] += x * x;
    }
    for (double& s : out) s = std::isfinite(s) ? std::sqrt(s) : std::numeric_limits<double>::max();
    return out;
  }

  const Matrix<T>& rows_;
  Matrix<T> units_;  ///< empty when a unit is one example
  Sampler sampler_;
  std::vector<T> block_;
};

}  // namespace cdgrab::cli
