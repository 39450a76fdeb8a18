// SPDX-License-Identifier: Apache-2.0
// What `cdgrab compare` writes on stdout: tables for people or JSON lines for machines.
#pragma once

#include <string>
#include <vector>

#include "compare/analysis.hpp"
#include "compare/result.hpp"
#include "compare/verdict.hpp"

namespace cdgrab::cli {

/// Each recipe at its best rate, all at equal rates, the verdict and its notes.
std::string compare_tables(const CompareResult& result, const std::vector<Entry>& entries,
                           const Verdict& verdict);

/// One line, `{"event":"summary", ..}`.
std::string compare_summary_line(const CompareResult& result, const std::vector<Entry>& entries,
                                 const Verdict& verdict);

/// What a loss is here: "loss above the optimum", or "loss".
std::string loss_name(const CompareResult& result);

/// "1.25x", "+3.1 MB"; "-" if not measured.
std::string time_text(const RelativeCost& cost);
std::string memory_text(const RelativeCost& cost);

/// The best rate with * at the edge of those tried; "-" if all diverged.
std::string best_rate_text(const Entry& entry);

/// Highest less lowest seed at the best rate.
std::string seeds_spread_text(const Entry& entry);

}  // namespace cdgrab::cli
