// SPDX-License-Identifier: Apache-2.0
// The page that `cdgrab compare` leaves behind.
#pragma once

#include <string>
#include <vector>

#include "compare/analysis.hpp"
#include "compare/result.hpp"
#include "compare/verdict.hpp"

namespace cdgrab::cli {

std::string compare_page(const CompareResult& result, const std::vector<Entry>& entries,
                         const Verdict& verdict);

}  // namespace cdgrab::cli
