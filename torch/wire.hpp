// SPDX-License-Identifier: Apache-2.0
// Numbers and tensors in bytes that travel between ranks of one kind of machine.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "autograd.hpp"
#include "cdgrab/bytes.hpp"
#include "cdgrab/error.hpp"

namespace cdgrab::torch {

class Writer {
 public:
  explicit Writer(Bytes& to) : to_(to) {}

  void number(std::uint64_t value) { raw(&value, sizeof(value)); }
  void text(const std::string& value) {
    number(value.size());
    raw(value.data(), value.size());
  }
  /// Its numbers, without its shape.
  void tensor(const Tensor& values) {
    const Tensor flat = values.contiguous();
    raw(flat.const_data_ptr(), flat.nbytes());
  }

 private:
  void raw(const void* from, std::size_t size) { to_.append({static_cast<const std::byte*>(from), size}); }

  Bytes& to_;
};

/// Throws StateMismatch where the bytes are too few: what comes from other ranks is whole, what comes from a
/// state need not be.
class Reader {
 public:
  explicit Reader(const Bytes& from) : from_(from) {}

  [[nodiscard]] bool done() const { return at_ == from_.size(); }
  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, raw(sizeof(value)), sizeof(value));
    return value;
  }
  std::string text() {
    const std::size_t size = number();
    const auto* bytes = reinterpret_cast<const char*>(raw(size));
    return {bytes, size};
  }
  Bytes bytes(std::size_t size) { return {{raw(size), size}}; }
  Tensor tensor(std::vector<std::int64_t> shape, at::ScalarType dtype) {
    std::size_t size = c10::elementSize(dtype);
    for (const std::int64_t length : shape) {
      if (length < 0 || (length > 0 && size > from_.size() / static_cast<std::size_t>(length))) too_short();
      size *= static_cast<std::size_t>(length);
    }
    const std::byte* bytes = raw(size);
    Tensor out = at::empty(shape, dtype);
    if (size > 0) std::memcpy(out.mutable_data_ptr(), bytes, size);
    return out;
  }

 private:
  [[noreturn]] void too_short() const {
    throw StateMismatch("SliceHolder",
                        fmt::format("{} bytes of slices, which are not enough for what they begin with; load "
                                    "a state of the same vectors",
                                    from_.size()));
  }
  const std::byte* raw(std::size_t size) {
    if (size > from_.size() - at_) too_short();
    const std::byte* bytes = from_.data() + at_;
    at_ += size;
    return bytes;
  }

  const Bytes& from_;
  std::size_t at_ = 0;
};

}  // namespace cdgrab::torch
