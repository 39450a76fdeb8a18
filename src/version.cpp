// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/version.hpp"

namespace cdgrab {

const char* version() { return CDGRAB_VERSION; }

}  // namespace cdgrab
