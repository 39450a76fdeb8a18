// SPDX-License-Identifier: Apache-2.0
// What every communicator must do. It needs no test framework, so that it runs inside any launcher's ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cdgrab/communicator.hpp"

namespace cdgrab::suite {

struct Check {
  std::string name;  ///< a sentence
  std::function<void(Communicator&)> run;
};

/// Each is collective, leaves the communicator usable, and throws std::runtime_error on a rank where it does
/// not hold. What went wrong is then in the text; the communicator is of no more use.
[[nodiscard]] const std::vector<Check>& communicator_checks();

/// All of them, in order.
void check_communicator(Communicator& communicator);

}  // namespace cdgrab::suite
