// SPDX-License-Identifier: Apache-2.0
// Ranks that are MPI processes: programs under mpirun or srun. Target cdgrab::mpi.
#pragma once

#include <mpi.h>

#include <string>

#include "cdgrab/communicator.hpp"

namespace cdgrab::mpi {

struct Options {
  std::size_t largest_message = std::size_t{1} << 30;  ///< longer pieces are cut; MPI counts in int
};

/// One rank of several. The constructors and duplicate() are collective, as MPI_Comm_dup is. duplicate(),
/// being for another thread, needs MPI_THREAD_MULTIPLE; one communicator is content with less.
///
/// When a rank fails. One that does not come within timeout() is named by the others. One whose communicator
/// goes because of an exception, or whose lengths do not agree, tells the others, and they throw the same at
/// once. One that dies (a signal, an exit without MPI_Finalize) is the launcher's business: mpirun ends all
/// others with it within a second or so, and says which it was. After a failure MPI cannot take back what is
/// under way: report it and end the process. MPI is then not finalised, which would wait for the others, and
/// so mpirun ends them too.
class Communicator final : public cdgrab::Communicator {
 public:
  /// All processes. Initialises MPI, with MPI_THREAD_MULTIPLE, if nobody has; what is initialised here is
  /// finalised when the last communicator goes, and cannot be initialised again.
  explicit Communicator(const Options& options = {});
  /// The ranks of a communicator that the caller owns, initialised and finalised by the caller. A copy is
  /// made; messages do not meet the caller's.
  explicit Communicator(MPI_Comm group, const Options& options = {});
  ~Communicator() override;

  [[nodiscard]] std::size_t rank() const override { return rank_; }
  [[nodiscard]] std::size_t ranks() const override { return ranks_; }
  [[nodiscard]] std::unique_ptr<cdgrab::Communicator> duplicate() override;

 protected:
  void exchange(std::span<const Sent> send, std::span<const Received> receive) override;

 private:
  class Session;
  class Transfers;
  Communicator(std::shared_ptr<Session> session, MPI_Comm group, const Options& options,
               std::chrono::milliseconds timeout);
  void hear_of_failure();
  [[noreturn]] void break_off(const std::string& why);
  void tell_others(const std::string& why);

  std::shared_ptr<Session> session_;
  Options options_;
  MPI_Comm group_ = MPI_COMM_NULL;
  std::size_t rank_ = 0;
  std::size_t ranks_ = 0;
  int exceptions_ = 0;  // under way when this was made
  std::string broken_;  // why nothing is sent any more
};

}  // namespace cdgrab::mpi
