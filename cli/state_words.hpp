// SPDX-License-Identifier: Apache-2.0
// What a state holds, for people and for programs.
#pragma once

#include <string>

#include "cdgrab/state.hpp"

namespace cdgrab::cli {

/// `path` is what the state is called. Both throw StateMismatch if a value that every state has is of another
/// kind. Nothing of a file's own text gets to a terminal but as one line of characters.
std::string state_words(const std::string& path, const State& state);
/// One JSON object, on one line.
std::string state_json(const std::string& path, const State& state);

}  // namespace cdgrab::cli
