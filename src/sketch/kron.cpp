// SPDX-License-Identifier: Apache-2.0
// Y = A X B^T for each tensor X: the Kronecker product of A and B applied to X without being formed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "cdgrab/error.hpp"
#include "kernels/kernels.hpp"
#include "sketch/sketches.hpp"

namespace cdgrab::sketches {
namespace {

// A Gaussian map of one side, or the identity where the side is no longer than the sketch.
template <class T>
class Side {
 public:
  Side(std::size_t length, std::size_t size, std::uint64_t seed, std::size_t index, KronSide side)
      : length_(length),
        size_(std::min(length, size)),
        matrix_(kron_map<T>(length, size, seed, index, side)) {}

  [[nodiscard]] std::size_t length() const { return length_; }
  [[nodiscard]] std::size_t size() const { return size_; }

  /// out[j * stride] = <row j of the map, vector>
  void apply(const T* vector, T* out, std::size_t stride) const {
    if (matrix_.empty()) {
      for (std::size_t j = 0; j < size_; ++j) out[j * stride] = vector[j];
      return;
    }
    const auto dot = kernels::best<T>().dot;
    for (std::size_t j = 0; j < size_; ++j) {
      out[j * stride] = static_cast<T>(dot(vector, nullptr, matrix_.data() + j * length_, length_));
    }
  }

 private:
  std::size_t length_;
  std::size_t size_;
  std::vector<T> matrix_;
};

template <class T>
class TensorSketch {
 public:
  TensorSketch(const KronTensor& tensor, std::uint64_t seed, std::size_t index)
      : left_(tensor.rows, tensor.size, seed, index, KronSide::kLeft),
        right_(tensor.columns, tensor.size, seed, index, KronSide::kRight) {}

  [[nodiscard]] std::size_t input_dim() const { return left_.length() * right_.length(); }
  [[nodiscard]] std::size_t output_dim() const { return left_.size() * right_.size(); }
  [[nodiscard]] std::size_t scratch() const { return left_.length() * right_.size(); }

  /// The products with B are kept as columns, (X B^T)^T, so that those with A read them in sequence too.
  void apply(const T* tensor, std::span<T> scratch, T* out) const {
    for (std::size_t i = 0; i < left_.length(); ++i) {
      right_.apply(tensor + i * right_.length(), scratch.data() + i, left_.length());
    }
    for (std::size_t j = 0; j < right_.size(); ++j) {
      left_.apply(scratch.data() + j * left_.length(), out + j, right_.size());
    }
  }

 private:
  Side<T> left_;
  Side<T> right_;
};

template <class T>
class KronSketch final : public Sketch<T> {
 public:
  KronSketch(const std::vector<KronTensor>& tensors, std::uint64_t seed) {
    std::size_t index = 0;
    for (const KronTensor& tensor : tensors) {
      const TensorSketch<T>& part = parts_.emplace_back(tensor, seed, index++);
      input_dim_ += part.input_dim();
      output_dim_ += part.output_dim();
      scratch_ = std::max(scratch_, part.scratch());
    }
  }

  [[nodiscard]] std::size_t input_dim() const override { return input_dim_; }
  [[nodiscard]] std::size_t output_dim() const override { return output_dim_; }

  void apply(const T* rows, std::size_t count, T* out) const override {
    std::vector<T> scratch(scratch_);
    for (std::size_t k = 0; k < count; ++k) {
      for (const TensorSketch<T>& part : parts_) {
        part.apply(rows, scratch, out);
        rows += part.input_dim();
        out += part.output_dim();
      }
    }
  }

 private:
  std::vector<TensorSketch<T>> parts_;
  std::size_t input_dim_ = 0;
  std::size_t output_dim_ = 0;
  std::size_t scratch_ = 0;
};

// Of all the Gaussian maps; a float64 cannot overflow and is exact enough for a limit.
double total_bytes(const std::vector<KronTensor>& tensors, std::size_t item_size) {
  double bytes = 0.0;
  for (const KronTensor& tensor : tensors) {
    for (const std::size_t length : {tensor.rows, tensor.columns}) {
      if (length > tensor.size) {
        bytes +=
            static_cast<double>(length) * static_cast<double>(tensor.size) * static_cast<double>(item_size);
      }
    }
  }
  return bytes;
}

}  // namespace

template <class T>
std::unique_ptr<Sketch<T>> make_kron(const std::vector<KronTensor>& tensors, std::uint64_t seed) {
  const double bytes = total_bytes(tensors, sizeof(T));
  if (bytes > static_cast<double>(kMaxBytes)) {
    throw UserError("make_sketch",
                    fmt::format("sketch=kron needs matrices of {:.0f} bytes; {} are allowed: use a "
                                "smaller length or sketch=sparse",
                                bytes, kMaxBytes));
  }
  return std::make_unique<KronSketch<T>>(tensors, seed);
}

template std::unique_ptr<Sketch<float>> make_kron(const std::vector<KronTensor>&, std::uint64_t);
template std::unique_ptr<Sketch<double>> make_kron(const std::vector<KronTensor>&, std::uint64_t);

}  // namespace cdgrab::sketches

namespace cdgrab {

template <class T>
std::vector<T> kron_map(std::size_t length, std::size_t size, std::uint64_t seed, std::size_t index,
                        KronSide side) {
  if (length <= size) return {};
  std::vector<T> map(size * length);
  const auto part = static_cast<std::uint32_t>(2 * index + (side == KronSide::kRight ? 1 : 0));
  sketches::fill_gaussian(map.data(), map.size(), 1.0 / std::sqrt(static_cast<double>(size)), seed, part);
  return map;
}

template std::vector<float> kron_map(std::size_t, std::size_t, std::uint64_t, std::size_t, KronSide);
template std::vector<double> kron_map(std::size_t, std::size_t, std::uint64_t, std::size_t, KronSide);

}  // namespace cdgrab
