// SPDX-License-Identifier: Apache-2.0
// What a DistributedSampler must do on the ranks of any communicator. It needs no test framework, so that it
// runs inside any launcher's ranks.
#pragma once

#include "cdgrab/communicator.hpp"

namespace cdgrab::suite {

/// Collective. For M = 1, 2, 3, 4, 7, 64 workers, with uneven shares and odd counts: on integer-valued
/// vectors the orders equal the order server's bit for bit, by deposits and by averaging; on real ones all
/// ranks hold the same. Throws std::runtime_error where that does not hold.
void check_orders(Communicator& communicator);

}  // namespace cdgrab::suite
