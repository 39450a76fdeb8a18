// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/herding.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cdgrab/error.hpp"
#include "cdgrab/random.hpp"

namespace cdgrab {
namespace {

template <class T>
bool row_is_finite(const std::vector<T>& rows, std::size_t dim, Index row) {
  for (std::size_t j = 0; j < dim; ++j) {
    if (!std::isfinite(rows[row * dim + j])) return false;
  }
  return true;
}

// The definition, coordinate by coordinate.
template <class T>
HerdingBound dull_bound(const std::vector<T>& rows, std::size_t dim, std::vector<Index> order) {
  std::erase_if(order, [&](Index row) { return !row_is_finite(rows, dim, row); });
  HerdingBound bound;
  std::vector<double> squares(order.size());
  for (std::size_t j = 0; j < dim; ++j) {
    double mean = 0.0;
    for (const Index row : order)
      mean += static_cast<double>(rows[row * dim + j]) / static_cast<double>(order.size());
    double prefix = 0.0;
    for (std::size_t t = 0; t < order.size(); ++t) {
      prefix += static_cast<double>(rows[order[t] * dim + j]) - mean;
      squares[t] += prefix * prefix;
      bound.linf = std::max(bound.linf, std::abs(prefix));
    }
  }
  for (const double square : squares) bound.l2 = std::max(bound.l2, std::sqrt(square));
  return bound;
}

template <class T>
std::vector<T> random_rows(std::size_t count, std::size_t dim, std::uint64_t seed) {
  std::vector<T> rows(count * dim);
  for (std::size_t k = 0; k < rows.size(); ++k)
    rows[k] = static_cast<T>(normal({seed, Purpose::kData, 0, 0}, k));
  return rows;
}

template <class T>
class Herding : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Herding, Scalars);

TYPED_TEST(Herding, EqualsTheDefinition) {
  using T = TypeParam;
  for (const std::size_t dim : {1U, 2U, 7U, 16U, 33U, 130U}) {
    for (const std::size_t n : {1U, 2U, 3U, 40U}) {
      const std::vector<T> rows = random_rows<T>(n, dim, dim);
      const std::vector<Index> order = random_permutation({1, Purpose::kOrder, 0, 0}, n);
      const HerdingBound expected = dull_bound(rows, dim, order);
      const HerdingBound bound = herding_bound<T>(rows, dim, order);
      EXPECT_NEAR(bound.l2, expected.l2, 1e-12 * (1.0 + expected.l2));
      EXPECT_NEAR(bound.linf, expected.linf, 1e-12 * (1.0 + expected.linf));
    }
  }
}

TYPED_TEST(Herding, RowsMayBeLeftOutAndRepeated) {
  using T = TypeParam;
  const std::vector<T> rows = random_rows<T>(10, 5, 3);
  const std::vector<Index> order{3, 3, 9, 0, 3};
  EXPECT_NEAR(herding_bound<T>(rows, 5, order).l2, dull_bound(rows, 5, order).l2, 1e-12);
}

TYPED_TEST(Herding, RowsThatAreNotFiniteArePassedOver) {
  using T = TypeParam;
  std::vector<T> rows = random_rows<T>(10, 5, 4);
  const std::vector<Index> all = identity_order(10);
  rows[3 * 5 + 2] = std::numeric_limits<T>::quiet_NaN();
  rows[7 * 5 + 4] = std::numeric_limits<T>::infinity();
  const std::vector<Index> finite{0, 1, 2, 4, 5, 6, 8, 9};
  EXPECT_DOUBLE_EQ(herding_bound<T>(rows, 5, all).l2, herding_bound<T>(rows, 5, finite).l2);
  EXPECT_DOUBLE_EQ(herding_bound<T>(rows, 5, all).linf, herding_bound<T>(rows, 5, finite).linf);
  EXPECT_EQ(herding_bound<T>(rows, 5, std::vector<Index>{3, 7}).l2, 0.0);
}

TYPED_TEST(Herding, NothingHasTheBoundZero) {
  using T = TypeParam;
  EXPECT_EQ(herding_bound<T>({}, 0, {}).l2, 0.0);
  EXPECT_EQ(herding_bound<T>({}, 4, {}).linf, 0.0);
  EXPECT_EQ(herding_bound<T>({}, 0, identity_order(5)).l2, 0.0);
  EXPECT_EQ(herding_bound<T>(random_rows<T>(3, 4, 1), 4, {}).l2, 0.0);
}

TYPED_TEST(Herding, WrongSizesAreRefused) {
  using T = TypeParam;
  const std::vector<T> rows = random_rows<T>(3, 4, 1);
  EXPECT_THROW(herding_bound<T>(rows, 5, {}), UserError);
  EXPECT_THROW(herding_bound<T>(rows, 4, std::vector<Index>{3}), UserError);
}

}  // namespace
}  // namespace cdgrab
