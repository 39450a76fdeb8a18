// SPDX-License-Identifier: Apache-2.0
// Memory of which there is much, and that comes anew with every step.
#pragma once

#include <cstddef>

namespace cdgrab {

/// Asks for large pages, where the system has them on request, for blocks of several: otherwise touching one
/// for the first time takes as long as filling it. A hint, whose refusal changes nothing.
void ask_for_large_pages(void* first, std::size_t bytes);

}  // namespace cdgrab
