// SPDX-License-Identifier: Apache-2.0
// Work in processes of its own: torch has one random generator and one number of threads per process, and
// what a run allocates is gone when it ends.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cdgrab::cli {

/// Sends a line to the parent.
using Send = std::function<void(std::string_view line)>;

struct Piece {
  std::function<void(const Send& send)> work;         ///< in a child
  std::function<void(const std::string& line)> take;  ///< in the parent, for each line sent, in sequence
};

/// Does all pieces, `jobs` at a time and begun in sequence; calls tick() ten times a second. When a piece
/// throws or its process dies, ends the others and throws std::runtime_error; when the user interrupts, ends
/// them and throws Interrupted. The calling process must not have started threads.
void run_in_processes(const std::vector<Piece>& pieces, std::size_t jobs, const std::function<void()>& tick);

}  // namespace cdgrab::cli
