// SPDX-License-Identifier: Apache-2.0
// The parts of a program whose instructions tests/cost/instructions.py compares with those it has on record.
#pragma once

#include <valgrind/callgrind.h>

#include <cstdio>

namespace cost {

/// Runs it once for what is set up once, and once more, counted under that name. The machine's own valgrind
/// counts; a program that runs without it counts nothing.
template <class Run>
void counted(const char* name, const Run& run) {
  run();
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
  run();
  CALLGRIND_DUMP_STATS_AT(name);
  CALLGRIND_STOP_INSTRUMENTATION;
}

/// Counts are good for one compiler; this is the one they are compared for.
inline void print_compiler() { std::printf("compiler %s\n", CDGRAB_COMPILER); }

}  // namespace cost
