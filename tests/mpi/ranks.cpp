// SPDX-License-Identifier: Apache-2.0
// The suites of all communicators and of orders on MPI ranks, and what they do when one of them fails.
//   mpirun -np 3 cdgrab_mpi_ranks suite|few-threads|hang|leave|disagree|die
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "cdgrab/error.hpp"
#include "cdgrab/mpi/communicator.hpp"
#include "conformance/communicator_suite.hpp"
#include "conformance/orders_suite.hpp"

namespace {

using cdgrab::mpi::Communicator;
using std::chrono::milliseconds;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

template <class Kind>
std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.what();
  }
  throw std::runtime_error("nothing was refused");
}

void sum_something(Communicator& communicator) {
  std::vector<double> values(10);
  communicator.sum(values);
}

/// Groups of a caller: this one has every second rank, the ranks in reverse.
void check_group_of_the_caller(const Communicator& world) {
  MPI_Comm group = MPI_COMM_NULL;
  const int rank = static_cast<int>(world.rank());
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &group);
  int size = 0;
  MPI_Comm_size(group, &size);
  {
    Communicator communicator(group);
    require(communicator.ranks() == static_cast<std::size_t>(size), "the group has another size");
    MPI_Comm_free(&group);  // it was copied
    cdgrab::suite::check_communicator(communicator);
  }
}

void check_long_pieces_are_cut() {
  Communicator communicator(MPI_COMM_WORLD, {.largest_message = 1000});
  cdgrab::suite::check_communicator(communicator);
  (void)refusal_of<cdgrab::UserError>(
      [] { const Communicator none(MPI_COMM_WORLD, {.largest_message = 0}); });
}

void suite() {
  (void)refusal_of<cdgrab::UserError>(
      [] { const Communicator none(MPI_COMM_WORLD); });  // not initialised yet
  {
    Communicator world;
    cdgrab::suite::check_communicator(world);
    check_group_of_the_caller(world);
    check_long_pieces_are_cut();
    cdgrab::suite::check_orders(world);
  }
  int finalised = 0;
  MPI_Finalized(&finalised);
  require(finalised != 0, "what was initialised is not finalised");
  (void)refusal_of<cdgrab::UserError>([] { const Communicator again; });
}

/// MPI is the caller's, and for one thread only.
void few_threads() {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  {
    Communicator communicator;
    sum_something(communicator);
    if (level < MPI_THREAD_MULTIPLE) {
      const std::string said = refusal_of<cdgrab::UserError>([&] { (void)communicator.duplicate(); });
      require(said.find("MPI_THREAD_FUNNELED") != std::string::npos, said);
    }
  }
  int finalised = 0;
  MPI_Finalized(&finalised);
  require(finalised == 0, "MPI of the caller was finalised");
  MPI_Finalize();
}

void hang() {
  Communicator world;
  world.set_timeout(milliseconds(500));
  sum_something(world);
  if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::minutes(5));
  sum_something(world);
}

void leave_because_of_a_mistake() {
  Communicator world;
  sum_something(world);
  if (world.rank() == 1) throw std::runtime_error("a mistake of rank 1's");
  const std::string said = refusal_of<cdgrab::CommunicationError>([&] { sum_something(world); });
  require(said.find("rank 1 has left because of an exception") != std::string::npos, said);
  (void)refusal_of<cdgrab::CommunicationError>([&] { sum_something(world); });
  fmt::print(stderr, "rank {} heard of it\n", world.rank());
  std::this_thread::sleep_for(
      milliseconds(300));  // else mpirun might end this one before it has printed that
}

void leave() try { leave_because_of_a_mistake(); } catch (const std::exception&) {
  std::this_thread::sleep_for(std::chrono::seconds(3));  // else mpirun might end the others before they hear
  throw;
}

void disagree() {
  Communicator world;
  sum_something(world);
  std::vector<double> values(world.rank() == 1 ? 11 : 10);
  world.sum(values);
}

void die() {
  Communicator world;
  sum_something(world);
  if (world.rank() == 1) std::raise(SIGKILL);
  sum_something(world);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::map<std::string, std::function<void()>> modes = {
      {"suite", suite}, {"few-threads", few_threads}, {"hang", hang},
      {"leave", leave}, {"disagree", disagree},       {"die", die}};
  modes.at(argc > 1 ? argv[1] : "suite")();
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  std::fflush(stderr);
  return 1;
}
