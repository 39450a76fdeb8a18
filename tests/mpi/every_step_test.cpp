// SPDX-License-Identifier: Apache-2.0
// Resume equals never stopping on MPI ranks: many workers, stopped before every step of two epochs.
//   mpirun -np 2 cdgrab_mpi_every_step
#include "torture/every_step.hpp"

#include <gtest/gtest.h>

#include "cdgrab/mpi/communicator.hpp"
#include "torture/at_length.hpp"
#include "torture/workers_play.hpp"

namespace cdgrab::torture {
namespace {

/// Short last batches are among them, and workers that are through before others.
std::vector<Size> sizes() {
  if (!at_length()) return {{7, 2}};
  return {{1, 1}, {5, 3}, {7, 2}, {8, 1}, {13, 2}, {24, 5}};
}

std::size_t check(Communicator& world, const Spec& spec, Size size) {
  std::size_t resumes = 0;
  for (const std::size_t workers : {1UL, 2UL, 3UL, 5UL})
    for (const bool local : {false, true})
      for (const bool overlap : {false, true}) {
        if (overlap && workers != 3) continue;
        SCOPED_TRACE(print_spec(spec) + ", n = " + std::to_string(size.examples) + ", " +
                     std::to_string(workers) + " workers");
        resumes += check_every_step(
            [&] { return std::make_unique<WorkersPlay>(spec, size, workers, world, local, overlap); },
            at_length() && size.examples == 5 && !overlap);
        if (testing::Test::HasFailure()) return resumes;
      }
  return resumes;
}

TEST(MpiResumeAtEveryStep, OfManyWorkers) {
  mpi::Communicator world;
  world.set_timeout(std::chrono::seconds(30));  // a rank that finds a difference leaves the others
  std::size_t resumes = 0;
  for (const std::string& text : kOfManyWorkers)
    for (const std::size_t unit :
         at_length() ? std::vector<std::size_t>{1, 2, 3} : std::vector<std::size_t>{2})
      for (const Size size : sizes()) {
        resumes += check(world, parse_spec(text + "; unit=" + std::to_string(unit)), size);
        if (HasFailure()) return;
      }
  if (world.rank() == 0) std::printf("%zu ranks: %zu resumes\n", world.ranks(), resumes);
}

}  // namespace
}  // namespace cdgrab::torture
