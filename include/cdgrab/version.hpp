// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace cdgrab {

/// "major.minor.patch" of the library that is linked.
const char* version();

}  // namespace cdgrab
