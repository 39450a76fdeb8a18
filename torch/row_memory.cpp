// SPDX-License-Identifier: Apache-2.0
#include "row_memory.hpp"

#include <cstdlib>

#include "cdgrab/large_pages.hpp"

namespace cdgrab::torch {
namespace {

/// The largest block that glibc learns from (DEFAULT_MMAP_THRESHOLD_MAX), less what it adds to it.
constexpr std::size_t kLargestLesson = (std::size_t{32} << 20) - (std::size_t{64} << 10);

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
  if (rows.is_cpu()) ask_for_large_pages(rows.data_ptr(), rows.nbytes());
  return rows;
}

}  // namespace cdgrab::torch
