// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/large_pages.hpp"

#include <sys/mman.h>

#include <cstdint>

namespace cdgrab {

void ask_for_large_pages(void* first, std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20;
  if (bytes < 2 * kLargePage) return;
  const auto begin = (reinterpret_cast<std::uintptr_t>(first) + kLargePage - 1) / kLargePage * kLargePage;
  const auto end = (reinterpret_cast<std::uintptr_t>(first) + bytes) / kLargePage * kLargePage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  static_cast<void>(first);
  static_cast<void>(bytes);
#endif
}

}  // namespace cdgrab
