// SPDX-License-Identifier: Apache-2.0
// A vector that begins where a cache line begins: no load or store of a whole register meets two lines.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace cdgrab {

template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}  // NOLINT(google-explicit-constructor): allocators rebind

  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* values, std::size_t) { ::operator delete(values, kLine); }
  friend bool operator==(const LineAllocator&, const LineAllocator&) { return true; }
};

template <class T>
using AlignedVector = std::vector<T, LineAllocator<T>>;

}  // namespace cdgrab
