// SPDX-License-Identifier: Apache-2.0
#include "row_memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

namespace cdgrab::torch {
namespace {

constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20;
/// The largest block that glibc learns from (DEFAULT_MMAP_THRESHOLD_MAX), less what it adds to it.
constexpr std::size_t kLargestLesson = (std::size_t{32} << 20) - (std::size_t{64} << 10);

/// The whole pages of [first, first + bytes); a hint, whose refusal changes nothing.
void ask_for_large_pages(void* first, std::size_t bytes) {
  const auto begin = (reinterpret_cast<std::uintptr_t>(first) + kLargePage - 1) / kLargePage * kLargePage;
  const auto end = (reinterpret_cast<std::uintptr_t>(first) + bytes) / kLargePage * kLargePage;
#ifdef MADV_HUGEPAGE
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

/// It keeps twice the largest block that it has seen mapped and freed, as of any tensor; one that is never
/// touched is enough. A user's MALLOC_ variables, and other allocators, are not moved by it.
bool teach_the_heap() {
  void* volatile block = std::malloc(kLargestLesson);  // NOLINT(cppcoreguidelines-no-malloc)
  std::free(block);                                    // NOLINT(cppcoreguidelines-no-malloc)
  return true;
}

}  // namespace

void keep_freed_memory() { [[maybe_unused]] static const bool kTaught = teach_the_heap(); }

Tensor empty_rows(at::IntArrayRef shape, const at::TensorOptions& options) {
  Tensor rows = at::empty(shape, options);
  if (rows.is_cpu() && rows.nbytes() >= 2 * kLargePage) ask_for_large_pages(rows.data_ptr(), rows.nbytes());
  return rows;
}

}  // namespace cdgrab::torch
