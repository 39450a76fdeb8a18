// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/sketch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cdgrab/error.hpp"
#include "sketch/sketches.hpp"

namespace cdgrab {
namespace {

constexpr std::size_t kLargest = std::numeric_limits<std::size_t>::max();

std::size_t multiply_or_largest(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kLargest : product;
}

std::size_t add_or_largest(std::size_t a, std::size_t b) {
  std::size_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kLargest : sum;
}

void require_length(const SketchOptions& options) {
  if (options.size > 0 || (options.eps > 0.0 && options.eps < 1.0)) return;
  throw UserError("make_sketch",
                  fmt::format("a sketch needs a length of 1 or more, or eps in (0, 1); the length is "
                              "0 and eps {}: say for example sketch=gauss:256 or eps=0.3",
                              options.eps));
}

// (first dimension) x (all others); a tensor of one dimension has one side, its columns.
KronTensor as_matrix(const Shape& shape) {
  if (shape.size() < 2) return {1, shape.empty() ? 1 : shape[0], 0};
  std::size_t columns = 1;
  for (std::size_t k = 1; k < shape.size(); ++k) columns = multiply_or_largest(columns, shape[k]);
  return {shape[0], columns, 0};
}

// A sketch of one side keeps the squared norm of all the rows (or columns) of all the differences of n
// matrices: n^2/2 times m vectors, m the longer side. The bound for n*m vectors lets each of them fail
// with probability 2/(n*m)^2, so all hold with probability 1 - 1/m at least. A matrix's squared norm is
// the sum of its rows', hence kept within the same factor; the second side then does the same to the
// columns of what is left. Half of eps each, and the factors multiply to 1 +- eps in first order.
std::size_t side_length(const SketchOptions& options, std::size_t n, const KronTensor& tensor) {
  if (options.size > 0) return options.size;
  const std::size_t vectors =
      multiply_or_largest(std::max<std::size_t>(n, 1), std::max(tensor.rows, tensor.columns));
  return johnson_lindenstrauss(vectors, options.eps / 2.0);
}

std::vector<KronTensor> kron_tensors(const SketchOptions& options, std::size_t n, std::size_t dim,
                                     const std::vector<Shape>& shapes) {
  if (shapes.empty() && dim > 0) {
    throw UserError("make_sketch",
                    fmt::format("sketch=kron needs the shapes of the tensors that make up a row of {} "
                                "numbers, none were given; give them, or use sketch=gauss or "
                                "sketch=sparse",
                                dim));
  }
  std::vector<KronTensor> tensors;
  std::size_t total = 0;
  for (const Shape& shape : shapes) {
    const KronTensor tensor = kron_tensor(options, n, shape);
    total = add_or_largest(total, multiply_or_largest(tensor.rows, tensor.columns));
    tensors.push_back(tensor);
  }
  if (total != dim) {
    throw UserError("make_sketch",
                    fmt::format("the shapes given for sketch=kron add up to {} numbers, but a row has "
                                "{}; give the shape of every tensor, in the row's order",
                                total, dim));
  }
  return tensors;
}

std::size_t kron_length(const std::vector<KronTensor>& tensors) {
  std::size_t length = 0;
  for (const KronTensor& tensor : tensors) {
    length += std::min(tensor.rows, tensor.size) * std::min(tensor.columns, tensor.size);
  }
  return length;
}

}  // namespace

KronTensor kron_tensor(const SketchOptions& options, std::size_t n, const Shape& shape) {
  KronTensor tensor = as_matrix(shape);
  tensor.size = side_length(options, n, tensor);
  return tensor;
}

std::size_t johnson_lindenstrauss(std::size_t n, double eps) {
  if (!(eps > 0.0 && eps < 1.0)) {
    throw UserError("johnson_lindenstrauss",
                    fmt::format("eps is {}; allowed is more than 0 and less than 1: try 0.3", eps));
  }
  const double vectors = static_cast<double>(std::max<std::size_t>(n, 2));
  const double length = std::ceil(4.0 * std::log(vectors) / (eps * eps / 2.0 - eps * eps * eps / 3.0));
  constexpr double kLimit = 0x1p62;  // longer than any row; a tiny eps would divide by zero
  return length < kLimit ? static_cast<std::size_t>(length) : static_cast<std::size_t>(kLimit);
}

template <class T>
std::unique_ptr<Sketch<T>> make_sketch(const SketchOptions& options, std::size_t n, std::size_t dim,
                                       const std::vector<Shape>& shapes, std::uint64_t seed) {
  if (options.kind == SketchKind::kNone) return nullptr;
  require_length(options);
  if (options.kind == SketchKind::kPca)
    throw UserError(
        "make_sketch",
        fmt::format("sketch=pca:{0} learns its directions where a loss is observed, and these are "
                    "rows that are given to the core; use sketch=kron:{0}, gauss or sparse",
                    options.size));
  if (options.kind == SketchKind::kKron) {
    const std::vector<KronTensor> tensors = kron_tensors(options, n, dim, shapes);
    if (kron_length(tensors) >= dim) return nullptr;
    return sketches::make_kron<T>(tensors, seed);
  }
  const std::size_t size = options.size > 0 ? options.size : johnson_lindenstrauss(n, options.eps);
  if (size >= dim) return nullptr;
  if (options.kind == SketchKind::kGauss) return sketches::make_gauss<T>(size, dim, seed);
  return sketches::make_sparse<T>(size, dim, seed);
}

template std::unique_ptr<Sketch<float>> make_sketch(const SketchOptions&, std::size_t, std::size_t,
                                                    const std::vector<Shape>&, std::uint64_t);
template std::unique_ptr<Sketch<double>> make_sketch(const SketchOptions&, std::size_t, std::size_t,
                                                     const std::vector<Shape>&, std::uint64_t);

}  // namespace cdgrab
