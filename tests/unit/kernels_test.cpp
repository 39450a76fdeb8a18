// SPDX-License-Identifier: Apache-2.0
// Every kernel on every instruction set of this machine against the plain loops: integer-valued
// numbers, so the two must agree bit for bit, on all lengths around a vector and a chain.
#include "kernels/kernels.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cdgrab/random.hpp"
#include "every_target.hpp"

namespace cdgrab::kernels {
namespace {

std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t dim = 0; dim < 70; ++dim) all.push_back(dim);
  for (const std::size_t dim : {127UL, 128UL, 129UL, 255UL, 511UL, 513UL, 1000UL, 2049UL}) all.push_back(dim);
  return all;
}

/// Small integers; one array of them per call.
template <class T>
class Numbers {
 public:
  std::vector<T> operator()(std::size_t dim) {
    std::vector<T> values(dim);
    for (T& value : values)
      value = static_cast<T>(static_cast<int>(uniform_below({7, Purpose::kData, 0, 0}, drawn_++, 15)) - 7);
    return values;
  }

 private:
  std::uint64_t drawn_ = 0;
};

template <class T>
std::vector<const T*> pointers(const std::vector<std::vector<T>>& rows) {
  std::vector<const T*> out;
  for (const auto& row : rows) out.push_back(row.data());
  return out;
}

template <class T>
std::vector<T*> pointers(std::vector<std::vector<T>>& rows) {
  std::vector<T*> out;
  for (auto& row : rows) out.push_back(row.data());
  return out;
}

template <class T>
class KernelsTest : public testing::Test {
 protected:
  Numbers<T> numbers_;

  std::vector<std::vector<T>> rows(std::size_t count, std::size_t dim) {
    std::vector<std::vector<T>> out;
    for (std::size_t k = 0; k < count; ++k) out.push_back(numbers_(dim));
    return out;
  }
};

using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(KernelsTest, Types);

TYPED_TEST(KernelsTest, DifferencePassEqualsThePlainLoop) {
  using T = TypeParam;
  on_every_target([&] {
    for (const std::size_t dim : lengths()) {
      for (std::size_t group = 1; group <= kMaxGroup; ++group) {
        for (const bool catch_up : {false, true}) {
          const auto first = this->rows(group, dim);
          const auto second = this->rows(group, dim);
          auto held = this->rows(group, dim);
          auto plain_held = held;
          auto acc = this->numbers_(dim);
          auto plain_acc = acc;
          const std::vector<T> weights = {T{1}, T{-1}, T{-1}, T{1}};
          const T* w = catch_up ? weights.data() : nullptr;
          double products[kMaxProducts];
          double plain[kMaxProducts];
          const auto a = pointers(first);
          const auto b = pointers(second);
          best<T>().difference_pass({acc.data(), pointers(held).data(), w, a.data(), b.data(), dim}, group,
                                    products);
          reference<T>().difference_pass(
              {plain_acc.data(), pointers(plain_held).data(), w, a.data(), b.data(), dim}, group, plain);
          ASSERT_EQ(acc, plain_acc) << dim;
          ASSERT_EQ(held, plain_held) << dim;
          for (std::size_t p = 0; p < group * (group + 1) / 2; ++p) ASSERT_EQ(products[p], plain[p]) << dim;
        }
      }
    }
  });
}

TYPED_TEST(KernelsTest, CentredPassEqualsThePlainLoop) {
  using T = TypeParam;
  on_every_target([&] {
    for (const std::size_t dim : lengths()) {
      for (std::size_t group = 1; group <= kMaxGroup; ++group) {
        for (const bool catch_up : {false, true}) {
          for (const bool mean : {false, true}) {
            const auto now = this->rows(group, dim);
            const auto last = this->rows(group, dim);
            const auto centre = this->numbers_(dim);
            auto acc = this->numbers_(dim);
            auto plain_acc = acc;
            auto total = this->numbers_(dim);
            auto plain_total = total;
            const std::vector<T> weights = {T{1}, T{-1}, T{-1}, T{1}};
            const auto last_rows = pointers(last);
            const auto rows = pointers(now);
            const auto run = [&](const Kernels<T>& kernels, std::vector<T>& s, std::vector<T>& t,
                                 double* out) {
              kernels.centred_pass({s.data(), mean ? t.data() : nullptr, mean ? centre.data() : nullptr,
                                    catch_up ? last_rows.data() : nullptr,
                                    catch_up ? weights.data() : nullptr, rows.data(), dim},
                                   group, out);
            };
            double products[kMaxProducts];
            double plain[kMaxProducts];
            run(best<T>(), acc, total, products);
            run(reference<T>(), plain_acc, plain_total, plain);
            ASSERT_EQ(acc, plain_acc) << dim;
            ASSERT_EQ(total, plain_total) << dim;
            for (std::size_t p = 0; p < group * (group + 1) / 2; ++p) ASSERT_EQ(products[p], plain[p]) << dim;
          }
        }
      }
    }
  });
}

TYPED_TEST(KernelsTest, CombineEqualsThePlainLoop) {
  using T = TypeParam;
  on_every_target([&] {
    for (const std::size_t dim : lengths()) {
      for (std::size_t count = 1; count <= kMaxGroup; ++count) {
        const auto first = this->rows(count, dim);
        const auto second = this->rows(count, dim);
        const std::vector<T> weights = {T{1}, T{-2}, T{3}, T{-1}};
        const auto a = pointers(first);
        auto b = pointers(second);
        b[count / 2] = nullptr;
        for (const T* const* minus :
             {static_cast<const T* const*>(nullptr), static_cast<const T* const*>(b.data())}) {
          auto acc = this->numbers_(dim);
          auto plain = acc;
          best<T>().combine({acc.data(), weights.data(), a.data(), minus, count, dim});
          reference<T>().combine({plain.data(), weights.data(), a.data(), minus, count, dim});
          ASSERT_EQ(acc, plain) << dim;
        }
      }
    }
  });
}

TYPED_TEST(KernelsTest, DotBlendAndPrefixEqualThePlainLoops) {
  using T = TypeParam;
  on_every_target([&] {
    for (const std::size_t dim : lengths()) {
      const auto x = this->numbers_(dim);
      const auto y = this->numbers_(dim);
      const auto z = this->numbers_(dim);
      for (const T* minus : {static_cast<const T*>(nullptr), z.data()})
        ASSERT_EQ(best<T>().dot(x.data(), minus, y.data(), dim),
                  reference<T>().dot(x.data(), minus, y.data(), dim));
      for (const T* minus : {static_cast<const T*>(nullptr), z.data()}) {
        auto acc = this->numbers_(dim);
        auto plain_acc = acc;
        std::vector<T> keep(dim);
        std::vector<T> plain_keep(dim);
        const bool kept = minus != nullptr;
        ASSERT_EQ(best<T>().add_and_dot(acc.data(), T{-1}, x.data(), minus, kept ? keep.data() : nullptr,
                                        y.data(), dim),
                  reference<T>().add_and_dot(plain_acc.data(), T{-1}, x.data(), minus,
                                             kept ? plain_keep.data() : nullptr, y.data(), dim));
        ASSERT_EQ(keep, plain_keep) << dim;
        ASSERT_EQ(acc, plain_acc) << dim;
      }
      for (const T* b : {static_cast<const T*>(nullptr), y.data()}) {
        std::vector<T> out(dim);
        std::vector<T> plain(dim);
        best<T>().blend(out.data(), T{3}, x.data(), T{-2}, b, dim);
        reference<T>().blend(plain.data(), T{3}, x.data(), T{-2}, b, dim);
        ASSERT_EQ(out, plain) << dim;
      }
      std::vector<double> prefix(z.begin(), z.end());
      std::vector<double> plain_prefix = prefix;
      const std::vector<double> mean(y.begin(), y.end());
      const PrefixNorms norms = best<T>().advance_prefix(prefix.data(), x.data(), mean.data(), dim);
      const PrefixNorms plain =
          reference<T>().advance_prefix(plain_prefix.data(), x.data(), mean.data(), dim);
      ASSERT_EQ(prefix, plain_prefix) << dim;
      ASSERT_EQ(norms.squared, plain.squared) << dim;
      ASSERT_EQ(norms.largest, plain.largest) << dim;
    }
  });
}

TYPED_TEST(KernelsTest, TheGramMatrixEqualsThePlainLoops) {
  using T = TypeParam;
  on_every_target([&] {
    for (const std::size_t dim : {0UL, 1UL, 7UL, 64UL, 257UL, 2051UL}) {
      for (const std::size_t count : {1UL, 2UL, 3UL, 4UL, 5UL, 9UL, 14UL}) {
        const auto numbers = this->numbers_(count * dim);
        std::vector<const T*> rows(count);
        for (std::size_t k = 0; k < count; ++k) rows[k] = numbers.data() + k * dim;
        std::vector<double> out(count * (count + 1) / 2, 5.0);
        std::vector<double> plain(out.size());
        best<T>().gram(rows.data(), count, dim, out.data());
        reference<T>().gram(rows.data(), count, dim, plain.data());
        ASSERT_EQ(out, plain) << count << " of " << dim;
      }
    }
  });
}

TYPED_TEST(KernelsTest, OneNumberThatIsNotFiniteIsFoundAnywhere) {
  using T = TypeParam;
  on_every_target([&] {
    for (const std::size_t dim : lengths()) {
      auto x = this->numbers_(dim);
      ASSERT_TRUE(best<T>().finite(x.data(), dim));
      for (std::size_t i = 0; i < dim; i += 1 + dim / 40) {
        for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                            -std::numeric_limits<T>::infinity()}) {
          const T kept = x[i];
          x[i] = bad;
          ASSERT_FALSE(best<T>().finite(x.data(), dim)) << dim << ", " << i;
          x[i] = kept;
        }
      }
    }
  });
}

/// Equal terms are the worst case of a sum in float32: every rounding goes the same way.
TEST(KernelsPrecision, ProductsOfLongFloatVectorsStayWithinOneInAMillion) {
  on_every_target([&] {
    for (const float value : {0.1F, 0.3F, 1.0F / 3.0F}) {
      const std::size_t dim = 3'000'001;
      const std::vector<float> x(dim, value);
      const std::vector<float> y(dim, 1.1F);
      const double exact = static_cast<double>(dim) * static_cast<double>(value) * static_cast<double>(1.1F);
      EXPECT_NEAR(best<float>().dot(x.data(), nullptr, y.data(), dim), exact, 1e-6 * exact);
      std::vector<float> held(dim);
      std::vector<float> acc(dim, 1.1F);
      const std::vector<float> zero(dim);
      const float* first[] = {x.data()};
      const float* second[] = {zero.data()};
      float* helds[] = {held.data()};
      double product = 0.0;
      best<float>().difference_pass({acc.data(), helds, nullptr, first, second, dim}, 1, &product);
      EXPECT_NEAR(product, exact, 1e-6 * exact);
    }
  });
}

}  // namespace
}  // namespace cdgrab::kernels
