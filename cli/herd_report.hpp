// SPDX-License-Identifier: Apache-2.0
// The page that `cdgrab herd --report` writes.
#pragma once

#include <string>

#include "herd.hpp"

namespace cdgrab::cli {

std::string herd_report(const HerdOptions& options, const HerdResult& result);

}  // namespace cdgrab::cli
