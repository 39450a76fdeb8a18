// SPDX-License-Identifier: Apache-2.0
// The answer in words: does ordering help here, against a baseline that was tuned as well?
#pragma once

#include <string>
#include <vector>

#include "compare/analysis.hpp"
#include "compare/result.hpp"

namespace cdgrab::cli {

struct Verdict {
  std::string headline;  ///< a few words
  std::string sentence;
  std::vector<std::string> notes;  ///< what to know before believing it, and what to do about it
};

Verdict judge(const CompareResult& result, const std::vector<Entry>& entries);

/// "pair", or with what is not plain about it: "pair, cosine, tail average".
std::string name_of(const Recipe& recipe);

}  // namespace cdgrab::cli
