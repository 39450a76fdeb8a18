// SPDX-License-Identifier: Apache-2.0
#include "products.hpp"

#include <ATen/Parallel.h>

#include "kernels/outer_products.hpp"
#include "kernels/projection.hpp"
#include "kernels/transposed_products.hpp"
#include "row_memory.hpp"

namespace cdgrab::torch {
namespace {

/// Columns up to which the kernel for few of them is the fastest, for many rows in their order and for few in
/// another.
constexpr std::int64_t kFewColumns = 64;
constexpr std::int64_t kFewColumnsOfRows = 16;
/// Of products in tiles of 12 x 32: more of them outside than inside, and a BLAS is as fast again.
constexpr std::int64_t kTileRows = 12;
constexpr std::int64_t kTileColumns = 32;
/// Rows of a product with few columns, and columns of the left one in tiles, that are worth a thread's while.
constexpr std::int64_t kGrain = 256;
constexpr std::int64_t kGrainOfColumns = 48;

bool is_covered(const Tensor& a, const Tensor& b) {
  return a.is_cpu() && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat;
}

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

/// out[b] = alpha * left[b]^T right[b], of one position each.
void form_outer_products(const Tensor& left, const Tensor& right, double alpha, const Tensor& out) {
  const kernels::OuterProducts all{left.const_data_ptr<float>(), right.const_data_ptr<float>(),
                                   size(left.size(0)), size(left.size(2)), size(right.size(2))};
  float* to = out.mutable_data_ptr<float>();
  at::parallel_for(0, out.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    kernels::form(all, size(begin), size(end), static_cast<float>(alpha), to);
  });
}

kernels::Strided strided(const Tensor& matrix) {
  return {matrix.const_data_ptr<float>(), size(matrix.size(0)), size(matrix.size(1)), size(matrix.stride(0)),
          size(matrix.stride(1))};
}

/// The same of few columns on the right, over any number of positions.
void form_thin_products(const Tensor& left, const Tensor& right, double alpha, const Tensor& out) {
  const Tensor weights = right.mul(alpha).contiguous();
  const kernels::Strided first = strided(left.select(0, 0).t());
  const float* by = weights.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const std::size_t columns = size(right.size(2));
  at::parallel_for(
      0, out.size(0), 1, [&, stride = size(left.stride(0))](std::int64_t begin, std::int64_t end) {
        for (std::size_t b = size(begin); b < size(end); ++b) {
          kernels::Strided one = first;
          one.first += b * stride;
          kernels::project(one, by + b * first.columns * columns, columns, to + b * first.rows * columns);
        }
      });
}

bool fills_tiles(std::int64_t m, std::int64_t n) {
  const auto rounded_up = [](std::int64_t value, std::int64_t step) {
    return (value + step - 1) / step * step;
  };
  return rounded_up(m, kTileRows) * rounded_up(n, kTileColumns) <= 2 * m * n;
}

/// What kernels take: others are left to torch, and so are sizes that do not go together, for it to say so.
bool are_covered(const Tensor& left, const Tensor& right) {
  return is_covered(left, right) && left.numel() > 0 && left.size(0) == right.size(0) &&
         left.size(1) == right.size(1);
}

bool is_covered_target(const Tensor& out, std::int64_t numbers) {
  return out.scalar_type() == at::kFloat && out.is_contiguous() && out.numel() == numbers;
}

bool are_for_tiles(const Tensor& left, const Tensor& right) {
  return fills_tiles(left.size(2), right.size(2)) && kernels::has_wide_registers();
}

/// Threads share the examples if there are enough; otherwise, or if these are added up, the left columns.
void add_products(const kernels::StridedSeries& left, const kernels::StridedSeries& right, double alpha,
                  const kernels::ProductTarget& to) {
  const auto factor = static_cast<float>(alpha);
  if (to.sum == nullptr && left.count >= size(at::get_num_threads())) {
    at::parallel_for(0, static_cast<std::int64_t>(left.count), 1, [=](std::int64_t begin, std::int64_t end) {
      kernels::ProductTarget own = to;
      own.first += size(begin) * to.stride;
      kernels::transposed_products(left.some(size(begin), size(end)), right.some(size(begin), size(end)),
                                   factor, own);
    });
    return;
  }
  at::parallel_for(0, static_cast<std::int64_t>(left.each.columns), kGrainOfColumns,
                   [=](std::int64_t begin, std::int64_t end) {
                     kernels::ProductTarget own = to;
                     own.first += size(begin) * right.each.columns;
                     if (own.sum != nullptr) own.sum += size(begin) * right.each.columns;
                     kernels::transposed_products(left.columns(size(begin), size(end)), right, factor, own);
                   });
}

kernels::StridedSeries series(const Tensor& all) {
  return {strided(all.select(0, 0)), size(all.stride(0)), size(all.size(0))};
}

}  // namespace

// Threads see numbers only: an operation of torch would not know that gradients are off.

Tensor times(const Tensor& matrix, const Tensor& map) {
  if (!is_covered(matrix, map)) return at::mm(matrix, map);
  const Tensor out = at::empty({matrix.size(0), map.size(1)}, matrix.options());
  if (map.size(1) > kFewColumns) {
    multiply_transposed(matrix.t().unsqueeze(0), map.unsqueeze(0), 1.0, 0.0, out.unsqueeze(0));
    return out;
  }
  const Tensor weights = map.contiguous();
  const kernels::Strided all = strided(matrix);
  const float* by = weights.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const std::size_t columns = size(map.size(1));
  at::parallel_for(0, matrix.size(0), kGrain, [&](std::int64_t begin, std::int64_t end) {
    kernels::Strided some = all;
    some.first += size(begin) * all.row_stride;
    some.rows = size(end - begin);
    kernels::project(some, by, columns, to + size(begin) * columns);
  });
  return out;
}

Tensor times_transposed(const Tensor& matrix, const Tensor& other) {
  return other.size(0) > kFewColumns ? times(matrix, other.t()) : at::mm(matrix, other.t());
}

void multiply_transposed(const Tensor& left, const Tensor& right, double alpha, double beta,
                         const Tensor& out) {
  const std::int64_t m = left.size(2);
  const std::int64_t n = right.size(2);
  const bool covered = are_covered(left, right) && is_covered_target(out, left.size(0) * m * n);
  if (covered && beta == 0.0 && left.size(1) == 1)
    form_outer_products(left.contiguous(), right.contiguous(), alpha, out);
  else if (covered && beta == 0.0 && n <= kFewColumnsOfRows && m >= n)
    form_thin_products(left, right, alpha, out);
  else if (covered && (beta == 0.0 || beta == 1.0) && are_for_tiles(left, right))
    add_products(series(left), series(right), alpha,
                 {out.mutable_data_ptr<float>(), size(m * n), beta == 1.0});
  else if (left.size(0) == 1)
    out.select(0, 0).addmm_(left.select(0, 0).t(), right.select(0, 0), beta, alpha);
  else
    out.baddbmm_(left.transpose(1, 2), right, beta, alpha);
}

bool comes_with_sum(const Tensor& left, const Tensor& right) {
  const bool enough = left.size(2) >= kGrainOfColumns * at::get_num_threads() || at::get_num_threads() == 1;
  return are_covered(left, right) && left.size(1) > 1 && enough && are_for_tiles(left, right);
}

bool multiply_with_sum(const Tensor& left, const Tensor& right, double alpha, const Tensor& out,
                       const Tensor& sum) {
  const std::int64_t numbers = left.size(2) * right.size(2);
  if (!comes_with_sum(left, right) || !is_covered_target(out, left.size(0) * numbers) ||
      !is_covered_target(sum, numbers))
    return false;
  add_products(series(left), series(right), alpha,
               {out.mutable_data_ptr<float>(), size(numbers), false, sum.mutable_data_ptr<float>()});
  return true;
}

}  // namespace cdgrab::torch
