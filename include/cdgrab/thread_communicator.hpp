// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process: for tests, and to simulate more workers than there are machines.
#pragma once

#include <functional>

#include "cdgrab/communicator.hpp"

namespace cdgrab {

/// One rank of several; each is used by a thread of its own. A rank that is destroyed while others still want
/// something of it makes them throw CommunicationError at once.
class ThreadCommunicator final : public Communicator {
 public:
  /// All ranks, in order; at least one.
  [[nodiscard]] static std::vector<std::unique_ptr<Communicator>> make(std::size_t ranks);
  ~ThreadCommunicator() override;

  [[nodiscard]] std::size_t rank() const override { return rank_; }
  [[nodiscard]] std::size_t ranks() const override;
  [[nodiscard]] std::unique_ptr<Communicator> duplicate() override;

 protected:
  void exchange(std::span<const Sent> send, std::span<const Received> receive) override;

 private:
  class Meeting;
  ThreadCommunicator(std::shared_ptr<Meeting> meeting, std::size_t rank);

  std::shared_ptr<Meeting> meeting_;
  std::size_t rank_;
};

/// Runs `body` on as many threads, each with its rank, and waits for all. If some throw, what was thrown
/// first is thrown here.
void run_on_threads(std::size_t ranks, const std::function<void(Communicator&)>& body);

}  // namespace cdgrab
