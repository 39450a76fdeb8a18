// SPDX-License-Identifier: Apache-2.0
#include "workers/queue.hpp"

#include <algorithm>
#include <utility>

namespace cdgrab {

Queue::Queue(bool behind, std::size_t limit) : behind_(behind), limit_(std::max<std::size_t>(limit, 1)) {}

Queue::~Queue() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Queue::put(std::function<void()> job) {
  std::unique_lock lock(mutex_);
  if (behind_ && !thread_.joinable()) thread_ = std::thread([this] { work(); });
  changed_.wait(lock, [this] { return failure_ != nullptr || jobs_.size() < limit_; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  if (behind_) {
    jobs_.push_back(std::move(job));
    changed_.notify_all();
    return;
  }
  lock.unlock();
  run(job);
  drain();
}

void Queue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_ != nullptr || (jobs_.empty() && !busy_); });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void Queue::run(std::function<void()>& job) {
  std::exception_ptr failure;
  try {
    job();
  } catch (...) {
    failure = std::current_exception();
  }
  const std::scoped_lock lock(mutex_);
  failure_ = failure;
}

void Queue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    changed_.notify_all();
    lock.unlock();
    run(job);
    job = nullptr;
    lock.lock();
    busy_ = false;
    changed_.notify_all();
    if (failure_ != nullptr) return;
  }
}

}  // namespace cdgrab
