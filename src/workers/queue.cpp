// SPDX-License-Identifier: Apache-2.0
#include "workers/queue.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cdgrab/error.hpp"

namespace cdgrab {

Queue::Queue(bool behind, std::size_t limit)
    : behind_(behind),
      limit_(std::max<std::size_t>(limit, 1)),
      shared_(std::make_unique<Shared>()),
      process_(getpid()) {}

Queue::~Queue() {
  if (!shared_->thread.joinable()) return;
  if (process_ != getpid()) {
    // The thread was not forked with us: what it shared cannot be joined, nor destroyed.
    static_cast<void>(shared_.release());
    return;
  }
  {
    const std::scoped_lock lock(shared_->mutex);
    shared_->stop = true;
    shared_->changed.notify_all();
  }
  shared_->thread.join();
}

void Queue::require_thread() const {
  if (!shared_->thread.joinable() || process_ == getpid()) return;
  throw UserError(
      "DistributedSampler",
      "overlap=true in a process that was forked from the one that made the sampler; its rounds run "
      "on a thread that stayed there: make a sampler here, or leave overlap out");
}

void Queue::put(std::function<void()> job) {
  require_thread();
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  if (behind_ && !s.thread.joinable()) {
    process_ = getpid();
    s.thread = std::thread([this] { work(); });
  }
  s.changed.wait(lock, [&] { return s.failure != nullptr || s.jobs.size() < limit_; });
  if (s.failure != nullptr) std::rethrow_exception(s.failure);
  if (behind_) {
    s.jobs.push_back(std::move(job));
    s.changed.notify_all();
    return;
  }
  lock.unlock();
  run(job);
  drain();
}

void Queue::drain() {
  require_thread();
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  s.changed.wait(lock, [&] { return s.failure != nullptr || (s.jobs.empty() && !s.busy); });
  if (s.failure != nullptr) std::rethrow_exception(s.failure);
}

void Queue::run(std::function<void()>& job) {
  std::exception_ptr failure;
  try {
    job();
  } catch (...) {
    failure = std::current_exception();
  }
  const std::scoped_lock lock(shared_->mutex);
  shared_->failure = failure;
}

void Queue::work() {
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  while (true) {
    s.changed.wait(lock, [&] { return s.stop || !s.jobs.empty(); });
    if (s.jobs.empty()) return;
    std::function<void()> job = std::move(s.jobs.front());
    s.jobs.pop_front();
    s.busy = true;
    s.changed.notify_all();
    lock.unlock();
    run(job);
    job = nullptr;
    lock.lock();
    s.busy = false;
    if (s.failure != nullptr) s.jobs.clear();  // who waits for something of theirs is told by its being gone
    s.changed.notify_all();
    if (s.failure != nullptr) return;
  }
}

}  // namespace cdgrab
