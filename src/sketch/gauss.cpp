// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "cdgrab/error.hpp"
#include "kernels/kernels.hpp"
#include "philox.hpp"
#include "sketch/sketches.hpp"

namespace cdgrab::sketches {
namespace {

// Coordinates of the matrix and of the rows that are multiplied before the next are fetched: a piece of a
// matrix row stays in the first cache while all rows meet it. Not a function of the number of rows, so
// that how a batch is cut does not show.
constexpr std::size_t kPiece = 2048;

template <class T>
class GaussSketch final : public Sketch<T> {
 public:
  GaussSketch(std::size_t size, std::size_t dim, std::uint64_t seed)
      : size_(size), dim_(dim), matrix_(size * dim) {
    fill_gaussian(matrix_.data(), matrix_.size(), 1.0 / std::sqrt(static_cast<double>(size)), seed, 0);
  }

  [[nodiscard]] std::size_t input_dim() const override { return dim_; }
  [[nodiscard]] std::size_t output_dim() const override { return size_; }

  void apply(const T* rows, std::size_t count, T* out) const override {
    std::vector<double> sums(count * size_);
    for (std::size_t start = 0; start < dim_; start += kPiece) {
      add_piece(rows + start, count, matrix_.data() + start, std::min(kPiece, dim_ - start), sums);
    }
    std::transform(sums.begin(), sums.end(), out, [](double sum) { return static_cast<T>(sum); });
  }

 private:
  void add_piece(const T* rows, std::size_t count, const T* matrix, std::size_t length,
                 std::vector<double>& sums) const {
    const auto dot = kernels::best<T>().dot;
    for (std::size_t i = 0; i < size_; ++i) {
      for (std::size_t k = 0; k < count; ++k) {
        sums[k * size_ + i] += dot(rows + k * dim_, nullptr, matrix + i * dim_, length);
      }
    }
  }

  std::size_t size_;
  std::size_t dim_;
  std::vector<T> matrix_;
};

// Box-Muller on both halves of two words: two normals.
void two_normals(std::uint32_t radius_word, std::uint32_t angle_word, double* out) {
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(radius_word) + 1.0) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(angle_word) * 0x1p-32;
  out[0] = radius * std::cos(angle);
  out[1] = radius * std::sin(angle);
}

}  // namespace

template <class T>
void fill_gaussian(T* out, std::size_t count, double scale, std::uint64_t seed, std::uint32_t part) {
  constexpr std::size_t kPerBlock = 4;
  const Stream stream{seed, Purpose::kSketch, part, 0};
  std::array<double, kPerBlock> normals;
  for (std::size_t start = 0; start < count; start += kPerBlock) {
    const PhiloxCounter block = philox_block(stream, start / kPerBlock);
    two_normals(block[0], block[1], normals.data());
    two_normals(block[2], block[3], normals.data() + 2);
    const std::size_t length = std::min(kPerBlock, count - start);
    for (std::size_t k = 0; k < length; ++k) out[start + k] = static_cast<T>(scale * normals[k]);
  }
}

template <class T>
std::unique_ptr<Sketch<T>> make_gauss(std::size_t size, std::size_t dim, std::uint64_t seed) {
  if (dim > kMaxBytes / sizeof(T) / size) {
    throw UserError("make_sketch",
                    fmt::format("sketch=gauss:{} of rows of {} numbers needs a matrix of more than the "
                                "{} bytes allowed; use sketch=sparse or sketch=kron, or a smaller "
                                "length",
                                size, dim, kMaxBytes));
  }
  return std::make_unique<GaussSketch<T>>(size, dim, seed);
}

template void fill_gaussian(float*, std::size_t, double, std::uint64_t, std::uint32_t);
template void fill_gaussian(double*, std::size_t, double, std::uint64_t, std::uint32_t);
template std::unique_ptr<Sketch<float>> make_gauss(std::size_t, std::size_t, std::uint64_t);
template std::unique_ptr<Sketch<double>> make_gauss(std::size_t, std::size_t, std::uint64_t);

}  // namespace cdgrab::sketches
