// SPDX-License-Identifier: Apache-2.0
// The bytes of a fuzz target as a script: numbers to choose by, taken from the front; when they are used up,
// 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace cdgrab::fuzz {

class Script {
 public:
  explicit Script(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  [[nodiscard]] bool done() const { return bytes_.empty(); }

  template <class T>
  T take() {
    T value{};
    const auto taken = first(sizeof(T));
    if (!taken.empty()) std::memcpy(&value, taken.data(), taken.size());
    return value;
  }
  std::size_t below(std::size_t end) { return take<std::uint8_t>() % end; }
  bool flip() { return below(2) == 1; }
  std::string text(std::size_t most) {
    const auto taken = first(below(most + 1));
    return {taken.begin(), taken.end()};
  }

 private:
  std::span<const std::uint8_t> first(std::size_t count) {
    const auto taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

  std::span<const std::uint8_t> bytes_;
};

}  // namespace cdgrab::fuzz
