// SPDX-License-Identifier: Apache-2.0
#include "thin_products.hpp"

#include <ATen/Parallel.h>

#include "kernels/outer_products.hpp"
#include "kernels/projection.hpp"

namespace cdgrab::torch {
namespace {

/// Columns from which on a BLAS is as fast as the kernel, for many rows in their order and for few in
/// another.
constexpr std::int64_t kFewColumns = 64;
constexpr std::int64_t kFewColumnsOfRows = 16;
/// Rows that are worth a thread's while.
constexpr std::int64_t kGrain = 256;

bool is_covered(const Tensor& a, const Tensor& b) {
  return a.is_cpu() && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat;
}

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

/// rows[b] = alpha * left[b]^T right[b], of one position each.
void form_outer_products(const Tensor& left, const Tensor& right, double alpha, const Tensor& rows) {
  const kernels::OuterProducts all{left.const_data_ptr<float>(), right.const_data_ptr<float>(),
                                   size(left.size(0)), size(left.size(2)), size(right.size(2))};
  float* to = rows.mutable_data_ptr<float>();
  at::parallel_for(0, rows.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    kernels::form(all, size(begin), size(end), static_cast<float>(alpha), to);
  });
}

}  // namespace

// Threads see numbers only: an operation of torch would not know that gradients are off.

Tensor times(const Tensor& matrix, const Tensor& map) {
  if (!is_covered(matrix, map) || map.size(1) > kFewColumns) return at::mm(matrix, map);
  const Tensor weights = map.contiguous();
  const Tensor out = at::empty({matrix.size(0), map.size(1)}, matrix.options());
  const kernels::Strided all{matrix.const_data_ptr<float>(), size(matrix.size(0)), size(matrix.size(1)),
                             size(matrix.stride(0)), size(matrix.stride(1))};
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

bool form_thin_rows(const Tensor& left, const Tensor& right, double alpha, const Tensor& rows) {
  if (!is_covered(left, right)) return false;
  if (left.size(1) == 1) {
    form_outer_products(left.contiguous(), right.contiguous(), alpha, rows);
    return true;
  }
  if (right.size(2) > kFewColumnsOfRows || left.size(2) < right.size(2)) return false;
  const Tensor weights = right.mul(alpha).contiguous();
  const kernels::Strided first{left.const_data_ptr<float>(), size(left.size(2)), size(left.size(1)),
                               size(left.stride(2)), size(left.stride(1))};
  const float* by = weights.const_data_ptr<float>();
  float* to = rows.mutable_data_ptr<float>();
  const std::size_t columns = size(right.size(2));
  at::parallel_for(
      0, rows.size(0), 1, [&, stride = size(left.stride(0))](std::int64_t begin, std::int64_t end) {
        for (std::size_t b = size(begin); b < size(end); ++b) {
          kernels::Strided one = first;
          one.first += b * stride;
          kernels::project(one, by + b * first.columns * columns, columns, to + b * first.rows * columns);
        }
      });
  return true;
}

}  // namespace cdgrab::torch
