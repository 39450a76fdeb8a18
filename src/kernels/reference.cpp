// SPDX-License-Identifier: Apache-2.0
// The plain loops: the definition of what the vectorised kernels compute, and their oracle.
#include <algorithm>
#include <cmath>

#include "kernels/kernels.hpp"

namespace cdgrab::kernels {
namespace {

template <class T>
T minus_if(const T* minus, std::size_t i) {
  return minus == nullptr ? T{0} : minus[i];
}

/// Adds the products of the vectors v (one coordinate each) and the accumulator s to the totals.
template <class T>
void add_products(const T* v, T s, std::size_t group, double* totals) {
  for (std::size_t k = 0, out = 0; k < group; ++k) {
    for (std::size_t j = 0; j < k; ++j)
      totals[out++] += static_cast<double>(v[k]) * static_cast<double>(v[j]);
    totals[out++] += static_cast<double>(v[k]) * static_cast<double>(s);
  }
}

template <class T>
void difference_pass(const DifferencePass<T>& p, std::size_t group, double* products) {
  std::fill_n(products, group * (group + 1) / 2, 0.0);
  for (std::size_t i = 0; i < p.dim; ++i) {
    T v[kMaxGroup];
    for (std::size_t k = 0; k < group; ++k) {
      if (p.weights != nullptr) p.accumulator[i] += p.weights[k] * p.held[k][i];
      v[k] = p.held[k][i] = p.first[k][i] - p.second[k][i];
    }
    add_products(v, p.accumulator[i], group, products);
  }
}

template <class T>
void centred_pass(const CentredPass<T>& p, std::size_t group, double* products) {
  std::fill_n(products, group * (group + 1) / 2, 0.0);
  for (std::size_t i = 0; i < p.dim; ++i) {
    const T centre = minus_if(p.centre, i);
    T v[kMaxGroup];
    for (std::size_t k = 0; k < group; ++k) {
      v[k] = p.rows[k][i] - centre;
      if (p.last == nullptr) continue;
      p.accumulator[i] += p.weights[k] * (p.last[k][i] - centre);
      if (p.total != nullptr) p.total[i] += p.last[k][i] - centre;
    }
    add_products(v, p.accumulator[i], group, products);
  }
}

template <class T>
void combine(const Combination<T>& c) {
  for (std::size_t i = 0; i < c.dim; ++i)
    for (std::size_t k = 0; k < c.count; ++k)
      c.accumulator[i] +=
          c.weights[k] * (c.first[k][i] - minus_if(c.second == nullptr ? nullptr : c.second[k], i));
}

template <class T>
double dot(const T* x, const T* minus, const T* y, std::size_t dim) {
  double total = 0.0;
  for (std::size_t i = 0; i < dim; ++i)
    total += static_cast<double>(x[i] - minus_if(minus, i)) * static_cast<double>(y[i]);
  return total;
}

template <class T>
double add_and_dot(T* accumulator, T weight, const T* x, const T* minus, T* keep, const T* y,
                   std::size_t dim) {
  double total = 0.0;
  for (std::size_t i = 0; i < dim; ++i) {
    const T v = x[i] - minus_if(minus, i);
    accumulator[i] += weight * v;
    if (keep != nullptr) keep[i] = v;
    total += static_cast<double>(v) * static_cast<double>(y[i]);
  }
  return total;
}

template <class T>
void blend(T* out, T a_weight, const T* a, T b_weight, const T* b, std::size_t dim) {
  for (std::size_t i = 0; i < dim; ++i)
    out[i] = b == nullptr ? a_weight * a[i] : a_weight * a[i] + b_weight * b[i];
}

template <class T>
bool finite(const T* x, std::size_t dim) {
  return std::all_of(x, x + dim, [](T value) { return std::isfinite(value); });
}

template <class T>
void gram(const T* const* rows, std::size_t count, std::size_t dim, double* out) {
  for (std::size_t k = 0; k < count; ++k)
    for (std::size_t j = 0; j <= k; ++j) *out++ = dot<T>(rows[k], nullptr, rows[j], dim);
}

template <class T>
PrefixNorms advance_prefix(double* prefix, const T* x, const double* mean, std::size_t dim) {
  PrefixNorms norms;
  for (std::size_t i = 0; i < dim; ++i) {
    prefix[i] += static_cast<double>(x[i]) - mean[i];
    norms.squared += prefix[i] * prefix[i];
    norms.largest = std::max(norms.largest, std::abs(prefix[i]));
  }
  return norms;
}

template <class T>
constexpr Kernels<T> kReference = {difference_pass<T>, centred_pass<T>, combine<T>, dot<T>,
                                   add_and_dot<T>,     blend<T>,        finite<T>,  gram<T>,
                                   advance_prefix<T>};

}  // namespace

template <class T>
const Kernels<T>& reference() {
  return kReference<T>;
}

template const Kernels<float>& reference<float>();
template const Kernels<double>& reference<double>();

}  // namespace cdgrab::kernels
