// SPDX-License-Identifier: Apache-2.0
#include "owed_sum.hpp"

#include <ATen/Parallel.h>

#include <optional>
#include <vector>

#include "kernels/outer_products.hpp"

namespace cdgrab::torch {
namespace {

/// Rows of the matrix that are worth a thread's while: a few tiles.
constexpr std::int64_t kGrain = 96;

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

/// visit(all, which, begin, end) for the matrix's rows, on as many threads as torch has. These see numbers
/// only: an operation of torch would not know that gradients are off.
template <class Visit>
void for_rows(const Factors& factors, const TwoWeights& two, Visit visit) {
  const Tensor left = factors.left.contiguous();
  const Tensor right = factors.right.contiguous();
  const kernels::OuterProducts all{left.const_data_ptr<float>(), right.const_data_ptr<float>(),
                                   size(factors.m), size(factors.n)};
  const kernels::Weighted which{two.order.data(), two.first, two.order.size(), two.weight, two.common};
  at::parallel_for(0, factors.m, kGrain,
                   [&](std::int64_t begin, std::int64_t end) { visit(all, which, size(begin), size(end)); });
}

}  // namespace

bool add_by_sum(const Factors& factors, const Tensor& weights, const Tensor& sum, Tensor& matrix) {
  if (!OwedSum::covers(factors) || !is_covered(sum) || !sum.is_contiguous()) return false;
  const auto two = two_weights(weights);
  if (!two) return false;
  const float* from = sum.const_data_ptr<float>();
  float* to = matrix.mutable_data_ptr<float>();
  for_rows(factors, *two, [&](const auto& all, const auto& which, std::size_t begin, std::size_t end) {
    kernels::add_by_sum(all, which, begin, end, from, to);
  });
  return true;
}

bool OwedSum::covers(const Factors& factors) {
  return factors.positions == 1 && !factors.is_lookup() && !factors.expand && is_covered(factors.left) &&
         is_covered(factors.right);
}

bool OwedSum::add_to(Tensor& matrix, const Tensor& weights) {
  const auto two = two_weights(weights);
  if (!two) return false;
  sum_ = at::empty({factors_.m, factors_.n}, factors_.options());
  float* sum = sum_.mutable_data_ptr<float>();
  float* to = matrix.mutable_data_ptr<float>();
  for_rows(factors_, *two, [&](const auto& all, const auto& which, std::size_t begin, std::size_t end) {
    kernels::add_with_sum(all, which, begin, end, sum, to);
  });
  return true;
}

const Tensor& OwedSum::value() {
  if (!is_known()) sum_ = at::mm(factors_.left.squeeze(1).t(), factors_.right.squeeze(1));
  return sum_;
}

Tensor OwedSum::take() {
  value();
  return std::move(sum_);
}

}  // namespace cdgrab::torch
