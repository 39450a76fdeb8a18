// SPDX-License-Identifier: Apache-2.0
// One rank, which has nobody to talk to.
#pragma once

#include "cdgrab/communicator.hpp"

namespace cdgrab {

class SelfCommunicator final : public Communicator {
 public:
  [[nodiscard]] std::size_t rank() const override { return 0; }
  [[nodiscard]] std::size_t ranks() const override { return 1; }
  [[nodiscard]] std::unique_ptr<Communicator> duplicate() override {
    auto other = std::make_unique<SelfCommunicator>();
    other->set_timeout(timeout());
    return other;
  }

 protected:
  void exchange(std::span<const Sent> /*send*/, std::span<const Received> /*receive*/) override {}
};

}  // namespace cdgrab
