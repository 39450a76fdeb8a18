// SPDX-License-Identifier: Apache-2.0
// Ranks that are a process group of torch.distributed: programs under torchrun.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cdgrab/communicator.hpp"

namespace c10d {
class ProcessGroup;
}

namespace cdgrab::torch {

struct C10dOptions {
  /// One all-to-all in place of a message for each rank: what groups without CPU tensors (nccl) are given
  /// anyway, by tensors on their device. A rank that is missing is then not named.
  bool all_to_all = false;
  /// Names of other groups of the same ranks, for duplicate() with all_to_all, one each; the same on all
  /// ranks.
  std::vector<std::string> spare = {};
};

/// The group goes on being the caller's: messages between two ranks have tags of their own and do not meet
/// its collectives, which may run at the same time, nor messages of other tags. Communicators of one group,
/// duplicates among them, are to be made in the same sequence on all ranks: that is how their tags agree.
/// With all_to_all they share the group's collectives, and a duplicate takes a spare group.
///
/// When a rank fails. One that has died is noticed at once by those that wait for it, one that hangs after
/// timeout(); both are named. After that the group is of no use: report it and end the process, and the
/// launcher ends the others.
class C10dCommunicator final : public Communicator {
 public:
  /// The name by which a group is known in this process: group.group_name in Python. Throws UserError if
  /// there is none.
  explicit C10dCommunicator(const std::string& group, const C10dOptions& options = {});
  explicit C10dCommunicator(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                            const C10dOptions& options = {});
  ~C10dCommunicator() override;

  [[nodiscard]] std::size_t rank() const override;
  [[nodiscard]] std::size_t ranks() const override;
  [[nodiscard]] std::unique_ptr<Communicator> duplicate() override;

 protected:
  void exchange(std::span<const Sent> send, std::span<const Received> receive) override;

 private:
  class Group;
  class Messages;
  class AllToAll;
  explicit C10dCommunicator(std::unique_ptr<Group> group);
  std::unique_ptr<Group> group_;
};

}  // namespace cdgrab::torch
