// SPDX-License-Identifier: Apache-2.0
// The adapter's kernels on every instruction set of this machine against the dullest loops: integer-valued
// numbers, so the two must agree bit for bit.
#include <gtest/gtest.h>

#include <vector>

#include "cdgrab/random.hpp"
#include "every_target.hpp"
#include "kernels/convolution.hpp"
#include "kernels/projection.hpp"

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

}  // namespace
}  // namespace cdgrab::torch::kernels
