// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/herding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cdgrab/error.hpp"
#include "kernels/kernels.hpp"

namespace cdgrab {
namespace {

// The visits that count: those of finite rows.
template <class T>
std::vector<Index> finite_visits(std::span<const T> rows, std::size_t dim, std::span<const Index> order) {
  const std::size_t count = rows.size() / dim;
  std::vector<Index> visits;
  visits.reserve(order.size());
  for (std::size_t t = 0; t < order.size(); ++t) {
    if (order[t] >= count) {
      throw UserError("herding_bound",
                      fmt::format("entry {} of the order is {}, but there are {} rows; give indices "
                                  "below that",
                                  t, order[t], count));
    }
    if (kernels::best<T>().finite(&rows[order[t] * dim], dim)) visits.push_back(order[t]);
  }
  return visits;
}

template <class T>
std::vector<double> mean_of(std::span<const T> rows, std::size_t dim, const std::vector<Index>& visits) {
  std::vector<double> mean(dim);
  for (const Index visit : visits) {
    const T* row = &rows[visit * dim];
    for (std::size_t j = 0; j < dim; ++j) mean[j] += static_cast<double>(row[j]);
  }
  const double count = static_cast<double>(visits.size());
  for (double& value : mean) value /= count;
  return mean;
}

}  // namespace

template <class T>
HerdingBound herding_bound(std::span<const T> rows, std::size_t dim, std::span<const Index> order) {
  if (dim == 0) return {};
  if (rows.size() % dim != 0) {
    throw UserError("herding_bound",
                    fmt::format("{} numbers are not rows of {}; give rows x dim numbers", rows.size(), dim));
  }
  const std::vector<Index> visits = finite_visits(rows, dim, order);
  if (visits.empty()) return {};
  const std::vector<double> mean = mean_of(rows, dim, visits);
  std::vector<double> prefix(dim);
  kernels::PrefixNorms worst;
  for (const Index visit : visits) {
    const kernels::PrefixNorms now =
        kernels::best<T>().advance_prefix(prefix.data(), &rows[visit * dim], mean.data(), dim);
    worst.squared = std::max(worst.squared, now.squared);
    worst.largest = std::max(worst.largest, now.largest);
  }
  return {std::sqrt(worst.squared), worst.largest};
}

template HerdingBound herding_bound(std::span<const float>, std::size_t, std::span<const Index>);
template HerdingBound herding_bound(std::span<const double>, std::size_t, std::span<const Index>);

}  // namespace cdgrab
