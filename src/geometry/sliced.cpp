// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/sliced_geometry.hpp"
#include "kernels/kernels.hpp"
#include "stored.hpp"

namespace cdgrab {
namespace {

/// Coordinates of a difference that are looked at while they are still in the first cache.
constexpr std::size_t kSliceTile = 1024;

template <class T>
Array array_of(const T* values, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(values, size));
  return {kTypeOf<T>, {size}, {bytes.begin(), bytes.end()}};
}

template <class T>
void require_whole(const Array& whole, std::size_t dim) {
  if (whole.dtype == kTypeOf<T> && whole.bytes.size() == dim * sizeof(T)) return;
  throw StateMismatch(
      "SlicedGeometry::load",
      fmt::format("a vector of {} bytes of {} where one of {} numbers of {} is needed; load a "
                  "state of the same vectors",
                  whole.bytes.size(), dtype_name(whole.dtype), dim, dtype_name(kTypeOf<T>)));
}

/// out = first - second over one slice. False if a coordinate of it is not finite.
template <class T>
bool form(const T* first, const T* second, T first_scale, T second_scale, std::size_t size, T* out) {
  const kernels::Kernels<T>& k = kernels::best<T>();
  for (std::size_t begin = 0; begin < size; begin += kSliceTile) {
    const std::size_t length = std::min(kSliceTile, size - begin);
    k.blend(out + begin, first_scale, first + begin, -second_scale, second + begin, length);
    if (!k.finite(out + begin, length)) return false;
  }
  return true;
}

}  // namespace

Slice slice_of(std::size_t dim, std::size_t rank, std::size_t holders) {
  if (rank >= holders) return {dim, dim};
  const auto begin = [&](std::size_t r) { return dim / holders * r + std::min(r, dim % holders); };
  return {begin(rank), begin(rank + 1)};
}

// ---- the sender

template <class T>
DenseSliceSender<T>::DenseSliceSender(std::size_t dim, std::size_t ranks, std::size_t holders)
    : dim_(dim), ranks_(ranks), holders_(holders) {}

template <class T>
void DenseSliceSender<T>::set_block(const T* rows, std::size_t count) {
  rows_ = rows;
  count_ = count;
}

template <class T>
void DenseSliceSender<T>::end_block() {
  set_block(nullptr, 0);
}

template <class T>
const T* DenseSliceSender<T>::pointer(const Operand& operand) const {
  return operand.kind == Operand::Kind::kRow ? rows_ + operand.index * dim_
                                             : carries_.at(operand.index).data();
}

template <class T>
double DenseSliceSender<T>::norm2(std::size_t row) {
  const T* x = rows_ + row * dim_;
  return kernels::best<T>().dot(x, nullptr, x, dim_);
}

template <class T>
bool DenseSliceSender<T>::finite(std::size_t row) {
  return kernels::best<T>().finite(rows_ + row * dim_, dim_);
}

template <class T>
std::size_t DenseSliceSender<T>::pack(std::span<const Vector> differences, std::span<Bytes> out) {
  for (std::size_t r = 0; r < ranks_; ++r)
    if (out[r].empty()) out[r].reserve(differences.size() * slice_of(dim_, r, holders_).size() * sizeof(T));
  for (std::size_t k = 0; k < differences.size(); ++k) {
    const auto& [first, second, has_second] = differences[k];
    const T* x = pointer(first);
    const T* y = pointer(second);
    bool finite = true;
    for (std::size_t r = 0; r < ranks_; ++r) {
      const Slice slice = slice_of(dim_, r, holders_);
      const std::size_t before = out[r].size();
      out[r].resize(before + slice.size() * sizeof(T));
      // Every piece of a buffer is a multiple of sizeof(T) long, so this is aligned.
      T* place = reinterpret_cast<T*>(out[r].data() + before);
      finite = finite && form(x + slice.begin, y + slice.begin, static_cast<T>(first.scale),
                              static_cast<T>(second.scale), slice.size(), place);
    }
    if (finite) continue;
    for (std::size_t r = 0; r < ranks_; ++r)
      out[r].resize(out[r].size() - slice_of(dim_, r, holders_).size() * sizeof(T));
    return k;
  }
  return differences.size();
}

template <class T>
void DenseSliceSender<T>::keep(Register carry, const Operand& row) {
  std::vector<T>& kept = carries_[carry];
  kept.resize(dim_);
  kernels::best<T>().blend(kept.data(), static_cast<T>(row.scale), pointer(row), T{0}, nullptr, dim_);
}

template <class T>
Array DenseSliceSender<T>::carry(Register carry) const {
  return array_of(carries_.at(carry).data(), dim_);
}

template <class T>
void DenseSliceSender<T>::set_carry(Register carry, const Array& whole) {
  require_whole<T>(whole, dim_);
  std::vector<T>& kept = carries_[carry];
  kept.resize(dim_);
  std::memcpy(kept.data(), whole.bytes.data(), whole.bytes.size());
}

// ---- the holder

template <class T>
DenseSliceHolder<T>::DenseSliceHolder(std::size_t dim, std::size_t rank, std::size_t holders)
    : dim_(dim), holders_(holders), slice_(slice_of(dim, rank, holders)), accumulator_(slice_.size()) {}

template <class T>
DType DenseSliceHolder<T>::dtype() const {
  return kTypeOf<T>;
}

/// More at a time cost more products (half of this many per pair) and longer sums, fewer cost more sums and
/// more reads of the accumulator. Measured with m = 4 and B = 16.
template <class T>
std::size_t DenseSliceHolder<T>::chunk() const {
  return dim_ / holders_ > 4096 ? 8 : 16;
}

template <class T>
void DenseSliceHolder<T>::hold(Bytes packed, std::size_t count) {
  if (packed.size() != count * part_bytes())
    throw InvariantError("SliceHolder::hold",
                         fmt::format("{} bytes for {} vectors of {}", packed.size(), count, part_bytes()));
  if (count == 0) return;
  held_bytes_ += packed.size();
  parcels_.push_back({next_, count, 0, std::move(packed)});
  next_ += count;
}

template <class T>
const typename DenseSliceHolder<T>::Parcel& DenseSliceHolder<T>::parcel_of(std::uint64_t number) const {
  const auto after = std::upper_bound(parcels_.begin(), parcels_.end(), number,
                                      [](std::uint64_t n, const Parcel& p) { return n < p.first; });
  return *std::prev(after);
}

template <class T>
const T* DenseSliceHolder<T>::vector(std::uint64_t number) const {
  const Parcel& parcel = parcel_of(number);
  return reinterpret_cast<const T*>(parcel.bytes.data() + (number - parcel.first) * part_bytes());
}

/// The accumulator is one more row of the Gram matrix, its last.
template <class T>
void DenseSliceHolder<T>::products(std::span<const std::uint64_t> numbers, Wanted wanted, Products& out) {
  const std::size_t count = numbers.size();
  std::vector<const T*> rows;
  for (const std::uint64_t number : numbers) rows.push_back(vector(number));
  rows.push_back(accumulator_.data());
  raw_.resize((count + 1) * (count + 2) / 2);
  kernels::best<T>().gram(rows.data(), count + 1, slice_.size(), raw_.data());
  const double* at = raw_.data();
  out.gram.clear();
  out.norms.clear();
  for (std::size_t k = 0; k < count; ++k, at += k) {
    if (wanted.gram) out.gram.insert(out.gram.end(), at, at + k);
    if (wanted.norms) out.norms.push_back(at[k]);
  }
  out.inner.assign(at, at + count);
}

template <class T>
void DenseSliceHolder<T>::combine(std::span<const std::uint64_t> numbers, std::span<const int> signs) {
  std::vector<const T*> rows;
  std::vector<T> weights;
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    if (signs[k] == 0) continue;
    rows.push_back(vector(numbers[k]));
    weights.push_back(static_cast<T>(signs[k]));
  }
  for (std::size_t begin = 0; begin < slice_.size(); begin += kSliceTile) {
    const std::size_t length = std::min(kSliceTile, slice_.size() - begin);
    for (std::size_t k = 0; k < rows.size(); k += kernels::kMaxGroup) {
      const std::size_t count = std::min(kernels::kMaxGroup, rows.size() - k);
      std::array<const T*, kernels::kMaxGroup> group{};
      for (std::size_t j = 0; j < count; ++j) group[j] = rows[k + j] + begin;
      kernels::best<T>().combine(
          {accumulator_.data() + begin, weights.data() + k, group.data(), nullptr, count, length});
    }
  }
}

template <class T>
std::vector<Bytes> DenseSliceHolder<T>::drop(std::span<const std::uint64_t> numbers) {
  std::vector<Bytes> freed;
  for (const std::uint64_t number : numbers) {
    const auto after = std::upper_bound(parcels_.begin(), parcels_.end(), number,
                                        [](std::uint64_t n, const Parcel& p) { return n < p.first; });
    Parcel& parcel = *std::prev(after);
    if (++parcel.dropped < parcel.count) continue;
    held_bytes_ -= parcel.bytes.size();
    freed.push_back(std::exchange(parcel.bytes, {}));
  }
  while (!parcels_.empty() && parcels_.front().dropped == parcels_.front().count) parcels_.pop_front();
  return freed;
}

template <class T>
void DenseSliceHolder<T>::clear() {
  std::fill(accumulator_.begin(), accumulator_.end(), T{0});
  parcels_.clear();
  next_ = 0;
  held_bytes_ = 0;
}

template <class T>
Bytes DenseSliceHolder<T>::accumulator() const {
  return {std::as_bytes(std::span(accumulator_))};
}

template <class T>
void DenseSliceHolder<T>::set_accumulator(Bytes part) {
  if (part.size() != part_bytes())
    throw StateMismatch("SliceHolder::load", fmt::format("an accumulator of {} bytes where {} are needed; "
                                                         "load a state of the same vectors",
                                                         part.size(), part_bytes()));
  if (!part.empty()) std::memcpy(accumulator_.data(), part.data(), part.size());
}

template <class T>
Bytes DenseSliceHolder<T>::held(std::uint64_t number) const {
  return {std::as_bytes(std::span(vector(number), slice_.size()))};
}

template <class T>
Array DenseSliceHolder<T>::join(std::span<const Bytes> parts) const {
  Array whole{kTypeOf<T>, {dim_}, {}};
  for (const Bytes& part : parts) whole.bytes.insert(whole.bytes.end(), part.begin(), part.end());
  require_whole<T>(whole, dim_);
  return whole;
}

template <class T>
Bytes DenseSliceHolder<T>::cut(const Array& whole) const {
  require_whole<T>(whole, dim_);
  return {std::span(whole.bytes).subspan(slice_.begin * sizeof(T), part_bytes())};
}

template class DenseSliceSender<float>;
template class DenseSliceSender<double>;
template class DenseSliceHolder<float>;
template class DenseSliceHolder<double>;

}  // namespace cdgrab
