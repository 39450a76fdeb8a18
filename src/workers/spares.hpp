// SPDX-License-Identifier: Apache-2.0
// Buffers that were used and will be again: fresh memory comes from the system page by page, which takes
// longer than to fill it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "cdgrab/bytes.hpp"

namespace cdgrab {

/// Any thread. There are never more than were in use at one time.
class Spares {
 public:
  /// Empty, with room for so many bytes.
  Bytes take(std::size_t bytes) {
    Bytes buffer = any_with(bytes);
    buffer.reserve(bytes);
    return buffer;
  }
  void give(Bytes buffer) {
    if (buffer.capacity() == 0) return;
    buffer.clear();
    const std::scoped_lock lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }
  void clear() {
    const std::scoped_lock lock(mutex_);
    buffers_.clear();
  }

 private:
  // One that has the room, or any: it grows then, and the number of buffers does not.
  Bytes any_with(std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    if (buffers_.empty()) return {};
    auto found = std::find_if(buffers_.rbegin(), buffers_.rend(),
                              [&](const Bytes& buffer) { return buffer.capacity() >= bytes; });
    if (found == buffers_.rend()) found = buffers_.rbegin();
    std::swap(*found, buffers_.back());
    Bytes buffer = std::move(buffers_.back());
    buffers_.pop_back();
    return buffer;
  }

  std::mutex mutex_;
  std::vector<Bytes> buffers_;
};

}  // namespace cdgrab
