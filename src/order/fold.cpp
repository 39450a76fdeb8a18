// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "cdgrab/code.hpp"

namespace cdgrab {
namespace {

/// The number of a code among the leaves and middles; what was not seen stands at the root's middle.
std::size_t slot_of(Code code, Code root_middle) { return code >= kNotFinite ? root_middle : code; }

bool reads_backwards(std::size_t slot) { return slot % 4 == 2; }

}  // namespace

std::vector<Index> fold(std::span<const Index> order, std::span<const Code> codes, unsigned levels) {
  const Code root_middle = middle_code(0, 0, levels);
  const std::size_t slots = (std::size_t{2} << levels) - 1;
  std::vector<std::size_t> counts(slots);
  for (const Code code : codes) ++counts[slot_of(code, root_middle)];

  // Where the next unit of each slot goes: forward slots from their first place on, backward ones
  // from their last place down.
  std::vector<std::ptrdiff_t> place(slots);
  std::vector<std::ptrdiff_t> step(slots);
  std::size_t begin = 0;
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const std::size_t end = begin + counts[slot];
    const bool backwards = reads_backwards(slot);
    place[slot] = static_cast<std::ptrdiff_t>(backwards ? end : begin) - (backwards ? 1 : 0);
    step[slot] = backwards ? -1 : 1;
    begin = end;
  }

  std::vector<Index> next(order.size());
  for (std::size_t t = 0; t < order.size(); ++t) {
    const std::size_t slot = slot_of(codes[t], root_middle);
    next[static_cast<std::size_t>(place[slot])] = order[t];
    place[slot] += step[slot];
  }
  return next;
}

}  // namespace cdgrab
