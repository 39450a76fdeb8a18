// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace cdgrab::torture {

/// The long version (make torture) rather than the one of every build.
inline bool at_length() { return std::getenv("CDGRAB_TORTURE") != nullptr; }

}  // namespace cdgrab::torture
