// SPDX-License-Identifier: Apache-2.0
// Jobs one after the other: at once, or on a thread of their own while the caller goes on.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace cdgrab {

/// Used by one thread. What a job throws is thrown by every call from then on, and no further job is run.
class Queue {
 public:
  /// `behind`: on a thread, at most `limit` jobs waiting; it is started with the first.
  Queue(bool behind, std::size_t limit);
  /// Waits for what was put: other ranks may count on it.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Runs the job, or waits until there is room for it.
  void put(std::function<void()> job);
  /// Waits until nothing is left to do.
  void drain();

 private:
  void run(std::function<void()>& job);
  void work();

  bool behind_;
  std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace cdgrab
