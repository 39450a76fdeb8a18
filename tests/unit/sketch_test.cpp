// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/sketch.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cdgrab/error.hpp"
#include "cdgrab/random.hpp"
#include "temp_folder.hpp"

namespace cdgrab {
namespace {

using test::message_of;

std::vector<double> random_row(std::size_t dim, std::uint64_t seed) {
  std::vector<double> row(dim);
  for (std::size_t k = 0; k < dim; ++k) row[k] = normal({seed, Purpose::kData, 0, 0}, k);
  return row;
}

template <class T>
std::vector<T> sketched(const Sketch<T>& sketch, const std::vector<T>& rows) {
  const std::size_t count = rows.size() / sketch.input_dim();
  std::vector<T> out(count * sketch.output_dim());
  sketch.apply(rows.data(), count, out.data());
  return out;
}

double inner(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0.0;
  for (std::size_t k = 0; k < x.size(); ++k) sum += x[k] * y[k];
  return sum;
}

template <class T>
bool all_finite(const std::vector<T>& values) {
  for (const T value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

// One kind of sketch, of rows that are three tensors: 12 x (3 x 7), 40, 2 x 3. For kron:8 the first keeps 8 x
// 8, the second 8, the third is short enough to stay.
struct Case {
  SketchOptions options;
  std::size_t output_dim;
  const char* name;
};

constexpr std::size_t kRowDim = 12 * 21 + 40 + 6;
const std::vector<Shape> kShapes{{12, 3, 7}, {40}, {2, 3}};

class EverySketch : public testing::TestWithParam<Case> {
 protected:
  template <class T = double>
  [[nodiscard]] static std::unique_ptr<Sketch<T>> make(std::uint64_t seed) {
    return make_sketch<T>(GetParam().options, 100, kRowDim, kShapes, seed);
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, EverySketch,
                         testing::Values(Case{{SketchKind::kGauss, 64, 0.0}, 64, "Gauss"},
                                         Case{{SketchKind::kSparse, 64, 0.0}, 64, "Sparse"},
                                         Case{{SketchKind::kKron, 8, 0.0}, 64 + 8 + 6, "Kron"}),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(EverySketch, HasTheLengthsAskedFor) {
  const auto sketch = make(1);
  ASSERT_NE(sketch, nullptr);
  EXPECT_EQ(sketch->input_dim(), kRowDim);
  EXPECT_EQ(sketch->output_dim(), GetParam().output_dim);
}

// Variances: 2/r for Gauss; about twice that per tensor for kron; the mean of 400 is within 5 deviations.
TEST_P(EverySketch, KeepsInnerProductsInExpectation) {
  constexpr int kSeeds = 400;
  const std::vector<double> x = random_row(kRowDim, 1);
  std::vector<double> y = random_row(kRowDim, 2);
  for (std::size_t k = 0; k < kRowDim; ++k) y[k] += x[k];
  double product = 0.0;
  double norm = 0.0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto sketch = make(seed);
    const std::vector<double> px = sketched(*sketch, x);
    product += inner(px, sketched(*sketch, y)) / kSeeds;
    norm += inner(px, px) / kSeeds;
  }
  EXPECT_NEAR(norm / inner(x, x), 1.0, 0.06);
  EXPECT_NEAR(product / inner(x, y), 1.0, 0.08);
}

TEST_P(EverySketch, IsLinear) {
  const auto sketch = make(3);
  const std::vector<double> x = random_row(kRowDim, 1);
  const std::vector<double> y = random_row(kRowDim, 2);
  std::vector<double> z(kRowDim);
  for (std::size_t k = 0; k < kRowDim; ++k) z[k] = 2.0 * x[k] - 0.5 * y[k];
  const std::vector<double> px = sketched(*sketch, x);
  const std::vector<double> py = sketched(*sketch, y);
  const std::vector<double> pz = sketched(*sketch, z);
  for (std::size_t k = 0; k < pz.size(); ++k) EXPECT_NEAR(pz[k], 2.0 * px[k] - 0.5 * py[k], 1e-10);
}

TEST_P(EverySketch, IsAPureFunctionOfItsArguments) {
  const std::vector<double> x = random_row(kRowDim, 1);
  EXPECT_EQ(sketched(*make(5), x), sketched(*make(5), x));
  EXPECT_NE(sketched(*make(5), x), sketched(*make(6), x));
}

TEST_P(EverySketch, DoesNotDependOnHowRowsAreCut) {
  const auto sketch = make(5);
  const std::vector<double> rows = random_row(5 * kRowDim, 1);
  const std::vector<double> together = sketched(*sketch, rows);
  std::vector<double> apart;
  for (std::size_t k = 0; k < 5; ++k) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(k * kRowDim);
    const std::vector<double> one = sketched(*sketch, std::vector<double>(begin, begin + kRowDim));
    apart.insert(apart.end(), one.begin(), one.end());
  }
  EXPECT_EQ(together, apart);
  sketch->apply(rows.data(), 0, nullptr);
}

TEST_P(EverySketch, Float32AndFloat64Agree) {
  const std::vector<double> x = random_row(kRowDim, 1);
  const std::vector<double> wide = sketched(*make<double>(9), x);
  const std::vector<float> narrow = sketched(*make<float>(9), std::vector<float>(x.begin(), x.end()));
  ASSERT_EQ(wide.size(), narrow.size());
  const double scale = std::sqrt(inner(x, x));
  for (std::size_t k = 0; k < wide.size(); ++k) EXPECT_NEAR(narrow[k], wide[k], 1e-6 * scale);
}

TEST_P(EverySketch, ARowThatIsNotFiniteStaysSoAndItsNeighboursDoNot) {
  const auto sketch = make<float>(2);
  const std::vector<double> source = random_row(3 * kRowDim, 1);
  for (std::size_t at = 0; at < kRowDim; ++at) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> rows(source.begin(), source.end());
      rows[kRowDim + at] = bad;
      const std::vector<float> out = sketched(*sketch, rows);
      const auto length = static_cast<std::ptrdiff_t>(sketch->output_dim());
      EXPECT_TRUE(all_finite(std::vector<float>(out.begin(), out.begin() + length)));
      EXPECT_FALSE(all_finite(std::vector<float>(out.begin() + length, out.begin() + 2 * length))) << at;
      EXPECT_TRUE(all_finite(std::vector<float>(out.begin() + 2 * length, out.end())));
    }
  }
}

TEST_P(EverySketch, ZeroStaysZero) {
  EXPECT_EQ(sketched(*make(1), std::vector<double>(kRowDim)), std::vector<double>(GetParam().output_dim));
}

// --- lengths ---

TEST(Sketch, JohnsonLindenstraussGivesTheBound) {
  EXPECT_EQ(johnson_lindenstrauss(1000, 0.1), 5921U);
  EXPECT_EQ(johnson_lindenstrauss(1'000'000, 0.5), 664U);
  EXPECT_EQ(johnson_lindenstrauss(0, 0.5), johnson_lindenstrauss(2, 0.5));
  EXPECT_GE(johnson_lindenstrauss(10, 1e-300), std::size_t{1} << 62);
  for (const double eps : {0.0, 1.0, -0.1, 7.0, std::nan("")}) {
    EXPECT_THROW(johnson_lindenstrauss(10, eps), UserError);
  }
}

TEST(Sketch, LengthFromEpsKeepsAllDistancesWithinIt) {
  constexpr std::size_t kRows = 12;
  constexpr std::size_t kLong = 4096;
  constexpr double kEps = 0.5;
  const std::vector<double> rows = random_row(kRows * kLong, 4);
  for (const SketchKind kind : {SketchKind::kGauss, SketchKind::kSparse, SketchKind::kKron}) {
    const auto sketch = make_sketch<double>({kind, 0, kEps}, kRows, kLong, {{4096}}, 8);
    ASSERT_NE(sketch, nullptr);
    const std::vector<double> out = sketched(*sketch, rows);
    const std::size_t length = sketch->output_dim();
    for (std::size_t a = 0; a < kRows; ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        double before = 0.0;
        double after = 0.0;
        for (std::size_t k = 0; k < kLong; ++k)
          before += std::pow(rows[a * kLong + k] - rows[b * kLong + k], 2);
        for (std::size_t k = 0; k < length; ++k)
          after += std::pow(out[a * length + k] - out[b * length + k], 2);
        EXPECT_NEAR(after / before, 1.0, kEps);
      }
    }
  }
}

TEST(Sketch, EpsGivesKronALengthPerTensorAndHalfTheErrorPerSide) {
  const std::size_t side = johnson_lindenstrauss(10 * 2000, 0.45);
  const auto sketch = make_sketch<float>({SketchKind::kKron, 0, 0.9}, 10, 3 * 2000 + 5, {{3, 2000}, {5}}, 1);
  ASSERT_NE(sketch, nullptr);
  EXPECT_EQ(sketch->output_dim(), 3 * side + 5);
}

TEST(Sketch, NoneAndOneNoShorterThanTheRowAreNull) {
  EXPECT_EQ(make_sketch<float>({}, 10, 100, {}, 1), nullptr);
  for (const SketchKind kind : {SketchKind::kGauss, SketchKind::kSparse, SketchKind::kKron}) {
    EXPECT_EQ(make_sketch<float>({kind, 100, 0.0}, 10, 100, {{100}}, 1), nullptr);
    EXPECT_EQ(make_sketch<float>({kind, 0, 0.1}, 10, 100, {{100}}, 1), nullptr);
    EXPECT_EQ(make_sketch<float>({kind, 5, 0.0}, 10, 0, {}, 1), nullptr);
    EXPECT_NE(make_sketch<float>({kind, 99, 0.0}, 10, 100, {{100}}, 1), nullptr);
  }
}

TEST(Sketch, OddSizesWork) {
  for (const SketchKind kind : {SketchKind::kGauss, SketchKind::kSparse, SketchKind::kKron}) {
    for (const std::size_t dim : {2U, 3U, 5U, 17U, 2047U, 2049U}) {
      for (const std::size_t size : {1U, 2U, 3U}) {
        const auto sketch = make_sketch<float>({kind, size, 0.0}, 10, dim, {{dim}}, dim);
        ASSERT_EQ(sketch == nullptr, size >= dim);
        if (sketch == nullptr) continue;
        const std::vector<double> row = random_row(dim, 1);
        const std::vector<float> out = sketched(*sketch, std::vector<float>(row.begin(), row.end()));
        EXPECT_EQ(out.size(), size);
        EXPECT_TRUE(all_finite(out));
      }
    }
  }
}

// --- refusals ---

TEST(Sketch, ALengthOrAnEpsIsNeeded) {
  for (const double eps : {0.0, 1.0, -1.0, std::nan("")}) {
    EXPECT_THROW(make_sketch<float>({SketchKind::kGauss, 0, eps}, 10, 100, {}, 1), UserError);
  }
}

TEST(Sketch, PcaIsRefusedForRowsThatAreGiven) {
  const auto make = [] { make_sketch<float>({SketchKind::kPca, 4, 0.0}, 10, 100, {{10, 10}}, 1); };
  EXPECT_NE(message_of<UserError>(make).find("use sketch=kron:4"), std::string::npos);
}

TEST(Sketch, KronNeedsShapesThatAddUp) {
  const SketchOptions kron{SketchKind::kKron, 2, 0.0};
  const auto message = [&](const std::vector<Shape>& shapes) {
    return message_of<UserError>([&] { make_sketch<float>(kron, 10, 100, shapes, 1); });
  };
  EXPECT_NE(message({}).find("needs the shapes"), std::string::npos);
  EXPECT_NE(message({{9, 11}}).find("add up to 99 numbers, but a row has 100"), std::string::npos);
  const std::size_t huge = std::size_t{1} << 40;
  EXPECT_THROW(make_sketch<float>(kron, 10, 100, {{huge, huge}, {100}}, 1), UserError);
}

TEST(Sketch, KronTakesTensorsOfAnyShape) {
  const SketchOptions kron{SketchKind::kKron, 2, 0.0};
  const auto sketch =
      make_sketch<double>(kron, 10, 1 + 0 + 0 + 9 + 24, {{}, {0}, {4, 0}, {3, 3}, {2, 3, 2, 2}}, 1);
  ASSERT_NE(sketch, nullptr);
  EXPECT_EQ(sketch->output_dim(), 1U + 4U + 4U);
  EXPECT_TRUE(all_finite(sketched(*sketch, random_row(34, 1))));
}

TEST(Sketch, KronLeavesShortSidesAsTheyAre) {
  const auto sketch = make_sketch<double>({SketchKind::kKron, 4, 0.0}, 10, 8 + 3, {{3}, {8}}, 1);
  const std::vector<double> row = random_row(11, 1);
  const std::vector<double> out = sketched(*sketch, row);
  for (std::size_t k = 0; k < 3; ++k) EXPECT_EQ(out[k], row[k]);
}

// (a b^T) sketched is (A a)(B b)^T, of rank one: what tells a Kronecker sketch from any other.
TEST(Sketch, KronKeepsRankOne) {
  const std::vector<double> a = random_row(9, 1);
  const std::vector<double> b = random_row(14, 2);
  std::vector<double> outer;
  for (const double x : a) {
    for (const double y : b) outer.push_back(x * y);
  }
  const auto sketch = make_sketch<double>({SketchKind::kKron, 3, 0.0}, 10, outer.size(), {{9, 14}}, 1);
  const std::vector<double> out = sketched(*sketch, outer);
  for (std::size_t i = 1; i < 3; ++i) {
    for (std::size_t j = 1; j < 3; ++j) EXPECT_NEAR(out[0] * out[i * 3 + j], out[i * 3] * out[j], 1e-9);
  }
}

// With A = B the identity matrix would grow: |A A^T|^2 is six times too large here.
TEST(Sketch, KronDrawsBothSidesIndependently) {
  constexpr std::size_t kSide = 20;
  constexpr int kSeeds = 200;
  std::vector<double> identity(kSide * kSide);
  for (std::size_t k = 0; k < kSide; ++k) identity[k * kSide + k] = 1.0;
  double norm = 0.0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto sketch =
        make_sketch<double>({SketchKind::kKron, 4, 0.0}, 10, identity.size(), {{kSide, kSide}}, seed);
    const std::vector<double> out = sketched(*sketch, identity);
    norm += inner(out, out) / kSeeds;
  }
  EXPECT_NEAR(norm / kSide, 1.0, 0.2);
}

TEST(Sketch, TooMuchMemoryIsRefusedWithTheRemedy) {
  const auto message = [](SketchKind kind, std::size_t size, std::size_t dim) {
    return message_of<UserError>([&] { make_sketch<float>({kind, size, 0.0}, 10, dim, {{dim}}, 1); });
  };
  const std::size_t long_row = 1'000'000'000;
  EXPECT_NE(message(SketchKind::kGauss, 256, long_row).find("use sketch=sparse or sketch=kron"),
            std::string::npos);
  EXPECT_NE(message(SketchKind::kGauss, std::size_t{1} << 40, std::size_t{1} << 50).find("gauss"),
            std::string::npos);
  EXPECT_NE(message(SketchKind::kSparse, 1'000'000, long_row).find("smaller length"), std::string::npos);
  EXPECT_NE(message(SketchKind::kSparse, 1, std::size_t{1} << 39).find("smaller length"), std::string::npos);
  EXPECT_NE(message(SketchKind::kKron, 256, long_row).find("smaller length"), std::string::npos);
}

}  // namespace
}  // namespace cdgrab
