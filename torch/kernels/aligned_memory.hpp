// SPDX-License-Identifier: Apache-2.0
// What kernels pack numbers into: aligned to whole registers, and not yet written.
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstddef>
#include <new>

namespace cdgrab::torch::kernels {

/// `count` may be 0.
inline hwy::AlignedFreeUniquePtr<float[]> aligned_floats(std::size_t count) {
  auto memory = hwy::AllocateAligned<float>(count + 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace cdgrab::torch::kernels
