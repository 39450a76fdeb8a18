// SPDX-License-Identifier: Apache-2.0
// As many ranks as the argument says, 1 without one, add up their numbers.
#include <cdgrab/cdgrab.hpp>
#include <cdgrab/mpi/communicator.hpp>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  const std::size_t expected = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1;
  cdgrab::mpi::Communicator world;
  std::vector<double> numbers = {static_cast<double>(world.rank()), 1.0};
  world.sum(numbers);
  const bool right = world.ranks() == expected && numbers[1] == static_cast<double>(expected) &&
                     numbers[0] == static_cast<double>(expected * (expected - 1) / 2);
  std::printf("rank %zu of %zu: %s\n", world.rank(), world.ranks(), right ? "right" : "wrong");
  return right ? 0 : 1;
}
