// SPDX-License-Identifier: Apache-2.0
// The adapter's kernels on every instruction set of this machine against the dullest loops: integer-valued
// numbers, so the two must agree bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "cdgrab/random.hpp"
#include "every_target.hpp"
#include "kernels/convolution.hpp"
#include "kernels/lookups.hpp"
#include "kernels/outer_products.hpp"
#include "kernels/projection.hpp"
#include "kernels/transposed_products.hpp"

namespace cdgrab::torch::kernels {
namespace {

std::vector<float> small_integers(std::size_t count) {
  static std::uint64_t drawn = 0;
  std::vector<float> values(count);
  for (float& value : values)
    value = static_cast<float>(uniform_below({7, Purpose::kData, 0, 0}, drawn++, 15)) - 7.0F;
  return values;
}

/// What output position (y, x) of example b sees at filter entry (i, r, c); nothing of the padding.
float seen(const Convolution& s, const std::vector<float>& inputs, std::size_t b, std::size_t i,
           std::size_t row, std::size_t column) {
  if (row < s.padding_height || row >= s.padding_height + s.height) return 0.0F;
  if (column < s.padding_width || column >= s.padding_width + s.width) return 0.0F;
  return inputs[((b * s.inputs + i) * s.height + row - s.padding_height) * s.width + column -
                s.padding_width];
}

std::vector<float> dull_gradients(const Convolution& s, std::size_t batch, const std::vector<float>& inputs,
                                  const std::vector<float>& outputs, float alpha) {
  std::vector<float> all;
  for (std::size_t b = 0; b < batch; ++b)
    for (std::size_t o = 0; o < s.outputs; ++o)
      for (std::size_t i = 0; i < s.inputs; ++i)
        for (std::size_t r = 0; r < s.kernel_height; ++r)
          for (std::size_t c = 0; c < s.kernel_width; ++c) {
            float sum = 0.0F;
            for (std::size_t y = 0; y < s.out_height; ++y)
              for (std::size_t x = 0; x < s.out_width; ++x)
                sum += outputs[((b * s.outputs + o) * s.out_height + y) * s.out_width + x] *
                       seen(s, inputs, b, i, y * s.stride_height + r, x * s.stride_width + c);
            all.push_back(alpha * sum);
          }
  return all;
}

/// With as many outputs as the sizes allow.
Convolution convolution(std::size_t inputs, std::size_t outputs, std::size_t size, std::size_t kernel_height,
                        std::size_t kernel_width, std::size_t stride, std::size_t padding) {
  Convolution s{.inputs = inputs,
                .height = size,
                .width = size + 1,
                .outputs = outputs,
                .out_height = 0,
                .out_width = 0,
                .kernel_height = kernel_height,
                .kernel_width = kernel_width,
                .stride_height = stride,
                .stride_width = 3 - stride,
                .padding_height = padding,
                .padding_width = padding / 2};
  s.out_height = (s.height + 2 * s.padding_height - kernel_height) / s.stride_height + 1;
  s.out_width = (s.width + 2 * s.padding_width - kernel_width) / s.stride_width + 1;
  return s;
}

TEST(FilterGradients, AreThoseOfTheDullLoopForEveryShape) {
  constexpr std::size_t kBatch = 3;
  on_every_target([&] {
    for (const std::size_t width : {3U, 5U, 7U})
      for (const std::size_t height : {1U, 2U, 3U, 4U, 5U, 7U, 9U})
        for (const std::size_t outputs : {1U, 6U, 8U, 9U, 16U, 21U})
          for (const std::size_t padding : {0U, 1U, 4U}) {
            const Convolution s =
                convolution(1 + outputs % 3, outputs, 9, height, width, 1 + padding % 2, padding);
            const auto inputs = small_integers(kBatch * s.inputs * s.height * s.width);
            const auto gradients = small_integers(kBatch * s.outputs * s.positions());
            std::vector<float> found(kBatch * s.outputs * s.filter(), -1.0F);
            filter_gradients(s, kBatch, inputs.data(), gradients.data(), 2.0F, found.data());
            ASSERT_EQ(found, dull_gradients(s, kBatch, inputs, gradients, 2.0F))
                << height << "x" << width << ", " << outputs << " outputs, padding " << padding;
          }
  });
}

TEST(FilterGradients, KnowTheirWidths) {
  for (std::size_t width = 0; width < 12; ++width)
    EXPECT_EQ(has_filter_gradients(width), width == 3 || width == 5 || width == 7) << width;
}

TEST(Projection, IsThatOfTheDullLoopForEveryShapeAndLayout) {
  on_every_target([] {
    for (const std::size_t rows : {0U, 1U, 7U, 8U, 9U, 19U})
      for (const std::size_t columns : {0U, 1U, 5U, 33U})
        for (const std::size_t size : {1U, 3U, 4U, 8U, 9U, 16U, 17U, 40U})
          for (const bool turned : {false, true}) {
            const auto numbers = small_integers(rows * columns + 2 * rows + 2 * columns);
            const auto map = small_integers(columns * size);
            const Strided matrix{numbers.data(), rows, columns, turned ? 1 : columns + 2,
                                 turned ? rows + 2 : 1};
            std::vector<float> found(rows * size, -1.0F);
            project(matrix, map.data(), size, found.data());
            std::vector<float> dull(rows * size, 0.0F);
            for (std::size_t i = 0; i < rows; ++i)
              for (std::size_t k = 0; k < columns; ++k)
                for (std::size_t j = 0; j < size; ++j)
                  dull[i * size + j] +=
                      numbers[i * matrix.row_stride + k * matrix.column_stride] * map[k * size + j];
            ASSERT_EQ(found, dull) << rows << " x " << columns << " x " << size << (turned ? ", turned" : "");
          }
  });
}

/// Tall matrices of integers, with rows that stand apart or turned.
struct Tall {
  std::size_t count, rows, columns;
  bool turned;
  std::size_t across = (turned ? rows : columns) + 3;
  std::size_t stride = across * (turned ? columns : rows) + 5;
  std::vector<float> numbers = small_integers(count * stride + 1);

  [[nodiscard]] StridedSeries series() const {
    return {{numbers.data(), rows, columns, turned ? 1 : across, turned ? across : 1}, stride, count};
  }
  [[nodiscard]] float at(std::size_t k, std::size_t t, std::size_t i) const {
    return numbers[k * stride + (turned ? i * across + t : t * across + i)];
  }
};

/// More and fewer columns than a tile, a block of tiles, and positions than are taken at once; each shape
/// turned this way or that.
template <class Check>
void for_every_product(const Check& check) {
  constexpr std::size_t kCount = 2;
  std::size_t turn = 0;
  for (const std::size_t rows : {0U, 1U, 2U, 35U, 256U, 259U})
    for (const std::size_t m : {1U, 5U, 6U, 12U, 13U, 25U, 483U})
      for (const std::size_t n : {1U, 7U, 16U, 32U, 33U, 70U}) {
        if (rows * m * n > 400'000) continue;
        ++turn;
        check(Tall{kCount, rows, m, turn % 2 == 0}, Tall{kCount, rows, n, turn % 3 == 0});
      }
}

TEST(TransposedProducts, AreThoseOfTheDullLoopForEveryShapeAndLayout) {
  on_every_target([] {
    for_every_product([](const Tall& left, const Tall& right) {
      const std::size_t entries = left.columns * right.columns;
      const std::vector<float> before = small_integers(left.count * entries);
      std::vector<float> formed(left.count * entries, -1.0F);
      std::vector<float> added = before;
      std::vector<float> sum(entries, 3.0F);
      transposed_products(left.series(), right.series(), 2.0F, {formed.data(), entries, false, sum.data()});
      transposed_products(left.series(), right.series(), 2.0F, {added.data(), entries, true});
      std::vector<float> dull(left.count * entries, 0.0F);
      std::vector<float> dull_sum(entries, 3.0F);
      for (std::size_t k = 0; k < left.count; ++k)
        for (std::size_t i = 0; i < left.columns; ++i)
          for (std::size_t j = 0; j < right.columns; ++j) {
            float& entry = dull[k * entries + i * right.columns + j];
            for (std::size_t t = 0; t < left.rows; ++t) entry += 2.0F * left.at(k, t, i) * right.at(k, t, j);
            dull_sum[i * right.columns + j] += entry;
          }
      ASSERT_EQ(formed, dull) << left.rows << " x " << left.columns << " x " << right.columns;
      ASSERT_EQ(sum, dull_sum) << left.rows << " x " << left.columns << " x " << right.columns;
      std::transform(before.begin(), before.end(), dull.begin(), dull.begin(), std::plus<>());
      ASSERT_EQ(added, dull) << left.rows << " x " << left.columns << " x " << right.columns;
    });
  });
}

TEST(TransposedProducts, AreRoundedTheSameWhateverColumnsOfTheLeftAreAskedFor) {
  on_every_target([] {
    Tall left{1, 300, 41, false};
    Tall right{1, 300, 37, false};
    for (float& number : left.numbers) number *= 0.1F;
    std::vector<float> whole(left.columns * right.columns);
    transposed_products(left.series(), right.series(), 0.3F, {whole.data(), whole.size()});
    for (std::size_t cut = 1; cut < left.columns; ++cut) {
      std::vector<float> parts(whole.size());
      transposed_products(left.series().columns(0, cut), right.series(), 0.3F, {parts.data(), parts.size()});
      transposed_products(left.series().columns(cut, left.columns), right.series(), 0.3F,
                          {parts.data() + cut * right.columns, parts.size()});
      ASSERT_EQ(parts, whole) << cut;
    }
  });
}

/// Some outer products, a matrix, and which of them are to be added.
struct Layer {
  std::size_t count, m, n;
  std::vector<float> left = small_integers(count * m);
  std::vector<float> right = small_integers(count * n);
  std::vector<float> matrix = small_integers(m * n);

  [[nodiscard]] OuterProducts all() const { return {left.data(), right.data(), count, m, n}; }
  [[nodiscard]] float entry(std::size_t k, std::size_t i, std::size_t j) const {
    return left[k * m + i] * right[k * n + j];
  }
};

/// More and fewer vectors, rows and columns than are taken at once; one entry in fifteen is zero.
template <class Check>
void for_every_layer(const Check& check) {
  for (const std::size_t count : {0U, 1U, 3U, 6U, 13U, 24U, 64U, 131U})
    for (const std::size_t m : {1U, 2U, 15U, 16U, 19U, 70U})
      for (const std::size_t n : {1U, 7U, 32U, 64U, 65U, 128U, 150U}) check(Layer{count, m, n});
}

TEST(OuterProducts, InnerIsThatOfTheDullLoopForEveryShape) {
  on_every_target([] {
    for_every_layer([](const Layer& layer) {
      std::vector<double> dull(layer.count, 1.0);
      for (std::size_t k = 0; k < layer.count; ++k)
        for (std::size_t i = 0; i < layer.m; ++i)
          for (std::size_t j = 0; j < layer.n; ++j)
            dull[k] += layer.entry(k, i, j) * layer.matrix[i * layer.n + j];
      std::vector<double> found(layer.count, 1.0);
      const std::size_t half = layer.m / 2;
      add_inner(layer.all(), 0, half, layer.matrix.data(), found.data());
      add_inner(layer.all(), half, layer.m, layer.matrix.data(), found.data());
      ASSERT_EQ(found, dull) << layer.count << " of " << layer.m << " x " << layer.n;
      const auto zeros = std::count(layer.left.begin(), layer.left.end(), 0.0F);
      EXPECT_EQ(entries(layer.all()), layer.left.size() - static_cast<std::size_t>(zeros));
    });
  });
}

TEST(OuterProducts, InnerOfManyRowsAndColumnsKeepsItsDigits) {
  Layer layer{1, 3000, 300};
  double exact = 0.0;
  for (std::size_t i = 0; i < layer.matrix.size(); ++i)
    layer.matrix[i] = static_cast<float>(uniform({3, Purpose::kData, 0, 0}, i));
  std::fill(layer.left.begin(), layer.left.end(), 1.0F);
  std::fill(layer.right.begin(), layer.right.end(), 1.0F);
  for (const float number : layer.matrix) exact += static_cast<double>(number);
  on_every_target([&] {
    double found = 0.0;
    add_inner(layer.all(), 0, layer.m, layer.matrix.data(), &found);
    EXPECT_NEAR(found, exact, 1e-6 * exact);
  });
}

TEST(OuterProducts, RowsAreThoseOfTheDullLoop) {
  on_every_target([] {
    for_every_layer([](const Layer& layer) {
      std::vector<float> dull;
      for (std::size_t k = 0; k < layer.count; ++k)
        for (std::size_t i = 0; i < layer.m; ++i)
          for (std::size_t j = 0; j < layer.n; ++j) dull.push_back(-2.0F * layer.entry(k, i, j) + 0.0F);
      std::vector<float> found(dull.size(), -1.0F);
      const std::size_t half = layer.count / 2;
      form(layer.all(), 0, half, -2.0F, found.data());
      form(layer.all(), half, layer.count, -2.0F, found.data());
      ASSERT_EQ(found, dull) << layer.count << " of " << layer.m << " x " << layer.n;
      EXPECT_TRUE(
          std::none_of(found.begin(), found.end(), [](float x) { return x == 0.0F && std::signbit(x); }));
    });
  });
}

TEST(OuterProducts, WhatIsAddedWithTheirSumAndByItIsThatOfTheDullLoop) {
  on_every_target([] {
    for_every_layer([](const Layer& layer) {
      // Backwards, without the last: an order of its own, and one that does not count.
      std::vector<std::size_t> order;
      for (std::size_t k = 1; k < layer.count; ++k) order.push_back(layer.count - 1 - k);
      const Weighted which{order.data(), order.size() / 2, order.size(), 2.0F, -1.0F};
      std::vector<float> sums(layer.m * layer.n, 0.0F);
      std::vector<float> added = layer.matrix;
      for (std::size_t i = 0; i < layer.m; ++i)
        for (std::size_t j = 0; j < layer.n; ++j)
          for (std::size_t k = 0; k < which.count; ++k) {
            sums[i * layer.n + j] += layer.entry(order[k], i, j);
            added[i * layer.n + j] += (k < which.first ? 1.0F : -1.0F) * layer.entry(order[k], i, j);
          }
      const std::size_t half = layer.m / 2;
      std::vector<float> sum(layer.m * layer.n, -1.0F);
      std::vector<float> with = layer.matrix;
      add_with_sum(layer.all(), which, 0, half, sum.data(), with.data());
      add_with_sum(layer.all(), which, half, layer.m, sum.data(), with.data());
      ASSERT_EQ(sum, sums) << layer.count << " of " << layer.m << " x " << layer.n;
      ASSERT_EQ(with, added) << layer.count << " of " << layer.m << " x " << layer.n;
      std::vector<float> by = layer.matrix;
      add_by_sum(layer.all(), which, 0, half, sum.data(), by.data());
      add_by_sum(layer.all(), which, half, layer.m, sum.data(), by.data());
      ASSERT_EQ(by, added) << layer.count << " of " << layer.m << " x " << layer.n;
    });
  });
}

/// Matrices (rows, n) of examples that look up some rows, one after the other.
std::vector<double> dull_matrices(const Lookups<double>& all, std::size_t rows) {
  std::vector<double> matrices(all.batch * rows * all.n);
  for (std::size_t k = 0; k < all.batch * all.positions; ++k)
    for (std::size_t j = 0; j < all.n; ++j)
      matrices[(k / all.positions * rows + static_cast<std::size_t>(all.indices[k])) * all.n + j] +=
          all.right[k * all.n + j];
  return matrices;
}

TEST(Lookups, CrossIsThatOfTheMatricesThatTheyStandFor) {
  std::uint64_t drawn = 0;
  const auto indices_below = [&](std::size_t rows, std::size_t count) {
    std::vector<std::int64_t> indices(count);
    for (std::int64_t& index : indices)
      index = static_cast<std::int64_t>(uniform_below({9, Purpose::kData, 0, 0}, drawn++, rows));
    return indices;
  };
  const auto numbers = [](std::size_t count) {
    const auto drawn_numbers = small_integers(count);
    return std::vector<double>(drawn_numbers.begin(), drawn_numbers.end());
  };
  for (const std::size_t rows : {1U, 3U, 40U})  // all the same, many the same, few
    for (const std::size_t positions : {1U, 2U, 9U})
      for (const std::size_t n : {1U, 16U, 21U}) {
        const auto first = indices_below(rows, 4 * positions);
        const auto second = indices_below(rows, 3 * positions);
        const auto right = numbers(4 * positions * n);
        const auto other = numbers(3 * positions * n);
        const Lookups<double> a{first.data(), right.data(), 4, positions, n};
        const Lookups<double> b{second.data(), other.data(), 3, positions, n};
        const auto expect = [&](const Lookups<double>& x, const Lookups<double>& y) {
          const auto mine = dull_matrices(x, rows);
          const auto theirs = dull_matrices(y, rows);
          std::vector<double> dull(x.batch * y.batch);
          for (std::size_t i = 0; i < x.batch; ++i)
            for (std::size_t j = 0; j < y.batch; ++j)
              for (std::size_t c = 0; c < rows * n; ++c)
                dull[i * y.batch + j] += mine[i * rows * n + c] * theirs[j * rows * n + c];
          std::vector<double> found(x.batch * y.batch, -1.0);
          cross(x, y, found.data());
          ASSERT_EQ(found, dull) << rows << " rows, " << positions << " positions of " << n;
          const std::vector<float> of_x(x.right, x.right + x.batch * positions * n);
          const std::vector<float> of_y(y.right, y.right + y.batch * positions * n);
          std::vector<float> narrow(x.batch * y.batch, -1.0F);
          cross<float>({x.indices, of_x.data(), x.batch, positions, n},
                       {y.indices, of_y.data(), y.batch, positions, n}, narrow.data());
          ASSERT_EQ(std::vector<double>(narrow.begin(), narrow.end()), dull);
        };
        expect(a, b);
        expect(a, a);
      }
  double none = -1.0;
  cross<double>({nullptr, nullptr, 1, 0, 3}, {nullptr, nullptr, 1, 0, 3}, &none);
  EXPECT_EQ(none, 0.0);
}

}  // namespace
}  // namespace cdgrab::torch::kernels
