// SPDX-License-Identifier: Apache-2.0
// Whether mpirun, srun or the like started this process as one of several, told by the environment: MPI is
// touched only then.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "cdgrab/communicator.hpp"

namespace cdgrab::cli {

bool launched();
/// Which of them it is; 0 if it is alone, or if that is not told.
std::size_t launched_rank();

/// All that were started together, or this one alone. Throws UserError if they are several and MPI was not
/// there when cdgrab was built. Only where there is torch: defined in cdgrab-train.
std::unique_ptr<Communicator> join_ranks(std::chrono::seconds timeout);

}  // namespace cdgrab::cli
