// SPDX-License-Identifier: Apache-2.0
// Jobs one after the other: at once, or on a thread of their own while the caller goes on.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace cdgrab {

/// Used by one thread. What a job throws is thrown by every call from then on, and no further job is run.
class Queue {
 public:
  /// `behind`: on a thread, at most `limit` jobs waiting; it is started with the first.
  Queue(bool behind, std::size_t limit);
  /// Waits for what was put: other ranks may count on it. In a process that was forked from the one with the
  /// thread there is nothing to wait for.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Runs the job, or waits until there is room for it.
  void put(std::function<void()> job);
  /// Waits until nothing is left to do.
  void drain();

 private:
  /// Throws UserError in a process that was forked: nobody there would do the jobs, nor tell.
  void require_thread() const;
  void run(std::function<void()>& job);
  void work();

  /// What the caller and the thread have in common.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> jobs;
    bool busy = false;
    bool stop = false;
    std::exception_ptr failure;
    std::thread thread;
  };

  bool behind_;
  std::size_t limit_;
  std::unique_ptr<Shared> shared_;
  std::int64_t process_;  ///< that the thread is of
};

}  // namespace cdgrab
