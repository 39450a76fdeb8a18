// SPDX-License-Identifier: Apache-2.0
// Tables in a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cdgrab::cli {

/// Lines of cells two spaces apart; the first `left` columns start where their heads start, the others end
/// where theirs end. A short row ends early.
std::string align_columns(const std::vector<std::vector<std::string>>& rows, std::size_t left);

}  // namespace cdgrab::cli
