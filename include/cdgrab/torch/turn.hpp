// SPDX-License-Identifier: Apache-2.0
// One thread at a time: a second one is refused, where it would otherwise change what the first is reading.
#pragma once

#include <atomic>
#include <thread>

#include "cdgrab/error.hpp"

namespace cdgrab::torch {

class Turn {
 public:
  /// Holds the turn while it lives. Throws UserError if another thread has it; never waits, so that nothing
  /// can lock up. A thread that has it may take it again.
  class Taken {
   public:
    explicit Taken(Turn& turn) : turn_(turn) {
      std::thread::id holder;
      first_ = turn_.holder_.compare_exchange_strong(holder, std::this_thread::get_id());
      if (first_ || holder == std::this_thread::get_id()) return;
      throw UserError(
          "cdgrab",
          "two threads at once in one sampler or geometry; one at a time is allowed: call it, and "
          "run the backward of what it observes, in one thread, or behind a lock of yours");
    }
    ~Taken() {
      if (first_) turn_.holder_ = std::thread::id();
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

   private:
    Turn& turn_;
    bool first_ = false;
  };

 private:
  std::atomic<std::thread::id> holder_;
};

}  // namespace cdgrab::torch
