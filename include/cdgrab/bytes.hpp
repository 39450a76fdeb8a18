// SPDX-License-Identifier: Apache-2.0
// Bytes that travel: a buffer that is written once, by whoever fills it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "cdgrab/large_pages.hpp"

namespace cdgrab {

/// As std::vector<std::byte>, but for what would be one more pass over everything that is sent: new bytes are
/// left as they are. (A vector whose allocator does that moves and frees them one by one.)
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::size_t size) { resize(size); }
  Bytes(std::span<const std::byte> from) { append(from); }  // NOLINT(google-explicit-constructor)
  Bytes(const Bytes& other) : Bytes(std::span(other)) {}
  Bytes(Bytes&& other) noexcept { swap(other); }
  Bytes& operator=(Bytes other) noexcept {
    swap(other);
    return *this;
  }
  ~Bytes() = default;

  [[nodiscard]] std::byte* data() { return bytes_.get(); }
  [[nodiscard]] const std::byte* data() const { return bytes_.get(); }
  [[nodiscard]] std::byte* begin() { return data(); }
  [[nodiscard]] const std::byte* begin() const { return data(); }
  [[nodiscard]] std::byte* end() { return data() + size_; }
  [[nodiscard]] const std::byte* end() const { return data() + size_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

  void clear() { size_ = 0; }
  void reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity);
    ask_for_large_pages(larger.get(), capacity);
    if (size_ > 0) std::memcpy(larger.get(), bytes_.get(), size_);
    bytes_ = std::move(larger);
    capacity_ = capacity;
  }
  void resize(std::size_t size) {
    if (size > capacity_) reserve(std::max(size, 2 * capacity_));
    size_ = size;
  }
  /// None of its own.
  void append(std::span<const std::byte> more) {
    const std::size_t before = size_;
    resize(before + more.size());
    if (!more.empty()) std::memcpy(data() + before, more.data(), more.size());
  }
  void push_back(std::byte one) { append({&one, 1}); }

  friend bool operator==(const Bytes& a, const Bytes& b) { return std::ranges::equal(a, b); }

 private:
  void swap(Bytes& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  std::unique_ptr<std::byte[]> bytes_;  // NOLINT(modernize-avoid-c-arrays): of a size known when it is made
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace cdgrab
