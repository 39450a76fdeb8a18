// SPDX-License-Identifier: Apache-2.0
// Buffers that have travelled, for the next ones: fresh memory costs as much as the copy into it.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "cdgrab/bytes.hpp"

namespace cdgrab {

/// Keeps `most` at most. Any thread.
class Spares {
 public:
  explicit Spares(std::size_t most) : most_(most) {}

  /// An empty buffer, with room from before if there is one.
  Bytes take() {
    const std::scoped_lock lock(mutex_);
    if (spares_.empty()) return {};
    Bytes spare = std::move(spares_.back());
    spares_.pop_back();
    return spare;
  }
  void give(Bytes buffer) {
    if (buffer.capacity() == 0) return;
    buffer.clear();
    const std::scoped_lock lock(mutex_);
    if (spares_.size() < most_) spares_.push_back(std::move(buffer));
  }

 private:
  std::size_t most_;
  std::mutex mutex_;
  std::vector<Bytes> spares_;
};

}  // namespace cdgrab
