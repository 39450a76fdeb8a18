// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/error.hpp"

#include <fmt/format.h>

namespace cdgrab {

Error::Error(std::string_view where, std::string_view what)
    : std::runtime_error(fmt::format("[{}] {}", where, what)) {}

}  // namespace cdgrab
