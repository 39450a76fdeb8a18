// SPDX-License-Identifier: Apache-2.0
#include "single_products.hpp"

#include <ATen/Parallel.h>

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/outer_products.hpp"

namespace cdgrab::torch {
namespace {

/// Rows of the matrix that are worth a thread's while.
constexpr std::int64_t kGrain = 128;
/// Of the left vectors' entries, from which on a BLAS takes less time for products with a matrix.
constexpr double kDense = 0.65;

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

/// Examples whose weights have two values at most: the fewer ones first.
struct TwoWeights {
  std::vector<std::size_t> order;
  std::size_t first = 0;
  float weight = 0.0F;  ///< of the first, less the common one
  float common = 0.0F;
};

bool is_covered(const Tensor& tensor) { return tensor.is_cpu() && tensor.scalar_type() == at::kFloat; }

/// None, too, where the common one is zero: then a sum saves nothing.
std::optional<TwoWeights> two_weights(const Tensor& weights) {
  if (!is_covered(weights)) return std::nullopt;
  const Tensor host = weights.contiguous();
  const float* values = host.const_data_ptr<float>();
  std::vector<std::size_t> as_first;
  std::vector<std::size_t> others;
  for (std::size_t k = 0; k < size(host.numel()); ++k) {
    if (values[k] == values[0])
      as_first.push_back(k);
    else if (others.empty() || values[k] == values[others.front()])
      others.push_back(k);
    else
      return std::nullopt;
  }
  if (as_first.empty()) return std::nullopt;
  if (as_first.size() < others.size()) std::swap(as_first, others);
  TwoWeights two{std::move(others), 0, 0.0F, values[as_first.front()]};
  if (two.common == 0.0F) return std::nullopt;
  two.first = two.order.size();
  if (two.first > 0) two.weight = values[two.order.front()] - two.common;
  two.order.insert(two.order.end(), as_first.begin(), as_first.end());
  return two;
}

/// The factors as the kernels take them, for as long as it lives.
class Contiguous {
 public:
  explicit Contiguous(const Factors& factors)
      : left_(factors.left.contiguous()),
        right_(factors.right.contiguous()),
        all_{left_.const_data_ptr<float>(), right_.const_data_ptr<float>(), size(factors.batch()),
             size(factors.m), size(factors.n)} {}
  [[nodiscard]] const kernels::OuterProducts& all() const { return all_; }
  /// visit(begin, end) for the matrix's rows, on as many threads as torch has. These see numbers only: an
  /// operation of torch would not know that gradients are off.
  template <class Visit>
  void for_rows(Visit visit) const {
    at::parallel_for(0, static_cast<std::int64_t>(all_.m), kGrain,
                     [&](std::int64_t begin, std::int64_t end) { visit(size(begin), size(end)); });
  }

 private:
  Tensor left_, right_;
  kernels::OuterProducts all_;
};

kernels::Weighted as_weighted(const TwoWeights& two) {
  return {two.order.data(), two.first, two.order.size(), two.weight, two.common};
}

}  // namespace

bool are_single_products(const Factors& factors) {
  return factors.positions == 1 && !factors.is_lookup() && !factors.expand && is_covered(factors.left) &&
         is_covered(factors.right);
}

bool add_inner(const Factors& factors, const Tensor& matrix, const Tensor& total) {
  if (!are_single_products(factors) || !is_covered(matrix) || !matrix.is_contiguous()) return false;
  const Contiguous here(factors);
  const kernels::OuterProducts& all = here.all();
  if (static_cast<double>(kernels::entries(all)) > kDense * static_cast<double>(all.count * all.m))
    return false;
  const float* numbers = matrix.const_data_ptr<float>();
  std::mutex mutex;
  // By their first row, so that with as many threads their sum is always the same.
  std::map<std::size_t, std::vector<double>> parts;
  here.for_rows([&](std::size_t begin, std::size_t end) {
    std::vector<double> part(all.count);
    kernels::add_inner(all, begin, end, numbers, part.data());
    const std::lock_guard lock(mutex);
    parts.emplace(begin, std::move(part));
  });
  for (const auto& [begin, part] : parts) total.add_(at::tensor(part, at::kDouble));
  return true;
}

bool add_by_sum(const Factors& factors, const Tensor& weights, const Tensor& sum, Tensor& matrix) {
  if (!are_single_products(factors) || !is_covered(sum) || !sum.is_contiguous()) return false;
  const auto two = two_weights(weights);
  if (!two) return false;
  const Contiguous here(factors);
  const float* from = sum.const_data_ptr<float>();
  float* to = matrix.mutable_data_ptr<float>();
  here.for_rows([&, which = as_weighted(*two)](std::size_t begin, std::size_t end) {
    kernels::add_by_sum(here.all(), which, begin, end, from, to);
  });
  return true;
}

bool OwedSum::add_to(Tensor& matrix, const Tensor& weights) {
  if (!are_single_products(factors_)) return false;
  const auto two = two_weights(weights);
  if (!two) return false;
  const Contiguous here(factors_);
  sum_ = at::empty({factors_.m, factors_.n}, factors_.options());
  float* sum = sum_.mutable_data_ptr<float>();
  float* to = matrix.mutable_data_ptr<float>();
  here.for_rows([&, which = as_weighted(*two)](std::size_t begin, std::size_t end) {
    kernels::add_with_sum(here.all(), which, begin, end, sum, to);
  });
  return true;
}

const Tensor& OwedSum::part(double scale) {
  scale_ = scale;
  if (!parts_.defined()) parts_ = at::zeros({factors_.m, factors_.n}, factors_.options());
  return parts_;
}

void OwedSum::take_in(std::int64_t examples) {
  taken_in_ += examples;
  if (taken_in_ == factors_.batch()) sum_ = parts_.mul_(1.0 / scale_);
}

const Tensor& OwedSum::value() {
  if (is_known()) return sum_;
  sum_ = at::zeros({factors_.m, factors_.n}, factors_.options());
  factors_.add_to(sum_, at::ones({factors_.batch()}, factors_.options()));
  return sum_;
}

Tensor OwedSum::take() {
  value();
  return std::move(sum_);
}

}  // namespace cdgrab::torch
