// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/error.hpp"
#include "cdgrab/self_communicator.hpp"
#include "launcher.hpp"
#ifdef CDGRAB_WITH_MPI
#include "cdgrab/mpi/communicator.hpp"
#endif

namespace cdgrab::cli {

std::unique_ptr<Communicator> join_ranks(std::chrono::seconds timeout) {
  std::unique_ptr<Communicator> communicator;
  if (!launched()) {
    communicator = std::make_unique<SelfCommunicator>();
  } else {
#ifdef CDGRAB_WITH_MPI
    communicator = std::make_unique<mpi::Communicator>();
#else
    throw UserError("mpirun",
                    "this cdgrab was built without MPI, so its processes cannot meet; build it where CMake "
                    "finds MPI (-DCDGRAB_BUILD_MPI=ON), or start one process: --workers simulates many");
#endif
  }
  communicator->set_timeout(timeout);
  return communicator;
}

}  // namespace cdgrab::cli
