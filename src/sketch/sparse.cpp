// SPDX-License-Identifier: Apache-2.0
// P. Li, T. Hastie, K. Church, "Very sparse random projections", KDD 2006, with s = sqrt(dim).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cdgrab/error.hpp"
#include "cdgrab/random.hpp"
#include "kernels/kernels.hpp"
#include "sketch/sketches.hpp"

namespace cdgrab::sketches {
namespace {

// One entry of the matrix in 64 bits, highest first: input, output, sign (1 is minus). Sorted, they
// follow the row from its beginning to its end, and the few outputs stay in the cache.
constexpr unsigned kOutputBits = 25;
constexpr unsigned kInputBits = 38;

std::uint64_t pack(std::uint64_t input, std::uint64_t output, std::uint64_t sign) {
  return (((input << kOutputBits) | output) << 1) | sign;
}

// Geometric skips: from one entry to the next in O(1), however few there are.
void draw_entries(std::size_t output, std::size_t dim, std::uint64_t seed,
                  std::vector<std::uint64_t>& entries) {
  const Stream stream{seed, Purpose::kSketch, output, 0};
  const double log_miss = std::log1p(-1.0 / std::sqrt(static_cast<double>(dim)));
  std::size_t input = 0;
  for (std::uint64_t draw = 0;; ++draw, ++input) {
    const std::uint64_t bits = random_bits(stream, draw);
    const double positive = (static_cast<double>(bits >> 11) + 1.0) * 0x1p-53;
    const double skip = std::log(positive) / log_miss;
    if (!(skip < static_cast<double>(dim - input))) return;
    input += static_cast<std::size_t>(skip);
    entries.push_back(pack(input, output, bits & 1));
  }
}

template <class T>
class SparseSketch final : public Sketch<T> {
 public:
  SparseSketch(std::size_t size, std::size_t dim, std::uint64_t seed)
      : size_(size),
        dim_(dim),
        scale_(std::sqrt(std::sqrt(static_cast<double>(dim)) / static_cast<double>(size))) {
    for (std::size_t output = 0; output < size; ++output) draw_entries(output, dim, seed, entries_);
    std::sort(entries_.begin(), entries_.end());
    entries_.shrink_to_fit();
  }

  [[nodiscard]] std::size_t input_dim() const override { return dim_; }
  [[nodiscard]] std::size_t output_dim() const override { return size_; }

  void apply(const T* rows, std::size_t count, T* out) const override {
    std::vector<double> sums(size_);
    for (std::size_t k = 0; k < count; ++k) apply_row(rows + k * dim_, sums, out + k * size_);
  }

 private:
  // A coordinate may meet no entry at all, so a row that is not finite has to be looked for.
  void apply_row(const T* row, std::vector<double>& sums, T* out) const {
    if (!kernels::best<T>().finite(row, dim_)) {
      std::fill_n(out, size_, std::numeric_limits<T>::quiet_NaN());
      return;
    }
    std::fill(sums.begin(), sums.end(), 0.0);
    constexpr std::uint64_t kOutputMask = (std::uint64_t{1} << kOutputBits) - 1;
    for (const std::uint64_t entry : entries_) {
      const double value = static_cast<double>(row[entry >> (kOutputBits + 1)]);
      sums[(entry >> 1) & kOutputMask] += (entry & 1) != 0 ? -value : value;
    }
    std::transform(sums.begin(), sums.end(), out,
                   [this](double sum) { return static_cast<T>(scale_ * sum); });
  }

  std::size_t size_;
  std::size_t dim_;
  double scale_;
  std::vector<std::uint64_t> entries_;
};

}  // namespace

template <class T>
std::unique_ptr<Sketch<T>> make_sparse(std::size_t size, std::size_t dim, std::uint64_t seed) {
  const double bytes =
      static_cast<double>(size) * std::sqrt(static_cast<double>(dim)) * sizeof(std::uint64_t);
  if (bytes > static_cast<double>(kMaxBytes) || (size >> kOutputBits) != 0 || (dim >> kInputBits) != 0) {
    throw UserError("make_sketch",
                    fmt::format("sketch=sparse:{} of rows of {} numbers needs about {:.0f} bytes; "
                                "allowed are {} bytes, a length below 2^{} and rows below 2^{}: use a "
                                "smaller length",
                                size, dim, bytes, kMaxBytes, kOutputBits, kInputBits));
  }
  return std::make_unique<SparseSketch<T>>(size, dim, seed);
}

template std::unique_ptr<Sketch<float>> make_sparse(std::size_t, std::size_t, std::uint64_t);
template std::unique_ptr<Sketch<double>> make_sparse(std::size_t, std::size_t, std::uint64_t);

}  // namespace cdgrab::sketches
