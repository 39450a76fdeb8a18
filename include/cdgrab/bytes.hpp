// SPDX-License-Identifier: Apache-2.0
// Bytes that travel: a buffer that is written once, by whoever fills it.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace cdgrab {

/// Leaves new elements as they are instead of setting them to zero first: that would be one more pass over
/// everything that is sent.
template <class T>
struct Unwritten : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = Unwritten<U>;
  };
  using std::allocator<T>::allocator;

  template <class U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
  template <class U, class... Args>
  void construct(U* place, Args&&... args) {
    std::construct_at(place, std::forward<Args>(args)...);
  }
};

using Bytes = std::vector<std::byte, Unwritten<std::byte>>;

}  // namespace cdgrab
