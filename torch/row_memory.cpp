// SPDX-License-Identifier: Apache-2.0
#include "row_memory.hpp"

#include <sys/mman.h>

#include <cstdint>

namespace cdgrab::torch {
namespace {

constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20;

/// The whole pages of [first, first + bytes); a hint, whose refusal changes nothing.
void ask_for_large_pages(void* first, std::size_t bytes) {
  const auto begin = (reinterpret_cast<std::uintptr_t>(first) + kLargePage - 1) / kLargePage * kLargePage;
  const auto end = (reinterpret_cast<std::uintptr_t>(first) + bytes) / kLargePage * kLargePage;
#ifdef MADV_HUGEPAGE
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace

Tensor empty_rows(at::IntArrayRef shape, const at::TensorOptions& options) {
  Tensor rows = at::empty(shape, options);
  if (rows.is_cpu() && rows.nbytes() >= 2 * kLargePage) ask_for_large_pages(rows.data_ptr(), rows.nbytes());
  return rows;
}

}  // namespace cdgrab::torch
