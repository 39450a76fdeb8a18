// SPDX-License-Identifier: Apache-2.0
// Many steps at flat memory.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <fstream>

#include "property/cases.hpp"
#include "torture/at_length.hpp"

namespace cdgrab::torture {

/// Bytes of the process that are in memory.
inline std::size_t resident() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0;
  std::size_t pages = 0;
  file >> total >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// A million times (make torture) or `briefly`: step() after step(). What a tenth of them leaves in memory is
/// all that there is at the end, to a megabyte. Sanitizers keep what was freed, and look for leaks by
/// themselves.
template <class Step>
void expect_flat_memory(const char* what, std::size_t briefly, const Step& step) {
  const std::size_t steps = (at_length() ? 1'000'000 : briefly) / cases::kShare;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    if (i == steps / 10) begin = resident();
    step();
  }
  const std::size_t end = resident();
  std::printf("%s: %zu steps, %zu KiB resident after a tenth, %zu at the end\n", what, steps, begin / 1024,
              end / 1024);
  if (cases::kShare == 1) {
    EXPECT_LE(end, begin + (1U << 20)) << what;
  }
}

}  // namespace cdgrab::torture
