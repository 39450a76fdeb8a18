// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/thread_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "cdgrab/error.hpp"

namespace cdgrab {
namespace {

constexpr const char* kThreads = "ThreadCommunicator";

}  // namespace

// Where the ranks meet, twice per exchange: when all have shown what they send, and when all have copied
// what is theirs, so that what was shown may go.
class ThreadCommunicator::Meeting {
 public:
  using Timeout = std::chrono::milliseconds;

  explicit Meeting(std::size_t ranks) : shown_(ranks), times_(ranks), gone_(ranks) {}

  [[nodiscard]] std::size_t ranks() const { return shown_.size(); }

  void exchange(std::size_t rank, std::span<const Sent> send, std::span<const Received> receive,
                Timeout timeout) {
    show(rank, send, timeout);
    copy(rank, receive);
    finish(rank);
  }

  /// The meeting of the duplicates that all ranks are making now.
  [[nodiscard]] std::shared_ptr<Meeting> successor() {
    const std::scoped_lock lock(mutex_);
    if (!successor_) successor_ = std::make_shared<Meeting>(ranks());
    const std::shared_ptr<Meeting> result = successor_;
    if (++successor_taken_ == ranks()) {
      successor_.reset();
      successor_taken_ = 0;
    }
    return result;
  }

  void leave(std::size_t rank) {
    const std::scoped_lock lock(mutex_);
    gone_[rank] = true;
    changed_.notify_all();
  }

 private:
  // Returns when every rank has shown what it sends; from then on all of it stays until everybody has
  // finished.
  void show(std::size_t rank, std::span<const Sent> send, Timeout timeout) {
    std::unique_lock lock(mutex_);
    throw_if_broken();
    shown_[rank] = send;
    const std::uint64_t time = come(rank);
    changed_.wait_for(lock, timeout,
                      [&] { return all_came(time) || !broken_.empty() || someone_gone(time); });
    if (all_came(time)) return;
    throw_if_broken();
    const std::size_t culprit = missing(time);
    break_off(
        gone_[culprit]
            ? fmt::format("rank {} is gone while others wait for it; see why it ended", culprit)
            : fmt::format("rank {} waited {} ms for rank {}, which did not come; see what it does, or allow "
                          "more by set_timeout()",
                          rank, timeout.count(), culprit));
    throw_if_broken();
  }

  void copy(std::size_t rank, std::span<const Received> receive) {
    for (std::size_t other = 0; other < ranks(); ++other) {
      if (other == rank) continue;
      const Sent piece = shown_[other][rank];
      if (piece.size() != receive[other].size()) {
        const std::scoped_lock lock(mutex_);
        break_off(
            fmt::format("rank {} sent {} bytes and rank {} expects {}; all ranks have to call the same "
                        "verbs with lengths that agree",
                        other, piece.size(), rank, receive[other].size()));
      } else if (!piece.empty()) {
        std::memcpy(receive[other].data(), piece.data(), piece.size());
      }
    }
  }

  // No time limit: all are here, and copying ends.
  void finish(std::size_t rank) {
    std::unique_lock lock(mutex_);
    const std::uint64_t time = come(rank);
    changed_.wait(lock, [&] { return all_came(time); });
    throw_if_broken();
  }

  std::uint64_t come(std::size_t rank) {
    const std::uint64_t time = ++times_[rank];
    if (all_came(time)) changed_.notify_all();
    return time;
  }

  // After this nobody meets any more: all throw the same.
  void break_off(const std::string& why) {
    if (broken_.empty()) broken_ = why;
    changed_.notify_all();
  }
  void throw_if_broken() const {
    if (!broken_.empty()) throw CommunicationError(kThreads, broken_);
  }

  [[nodiscard]] bool all_came(std::uint64_t time) const { return missing(time) == ranks(); }
  // The first rank that has not come yet, one that is gone before others; ranks() if there is none.
  [[nodiscard]] std::size_t missing(std::uint64_t time) const {
    std::size_t found = ranks();
    for (std::size_t r = ranks(); r-- > 0;)
      if (times_[r] < time && (found == ranks() || gone_[r] || !gone_[found])) found = r;
    return found;
  }
  [[nodiscard]] bool someone_gone(std::uint64_t time) const {
    const std::size_t rank = missing(time);
    return rank < ranks() && gone_[rank];
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::span<const Sent>> shown_;
  std::vector<std::uint64_t> times_;  // how often each rank has come
  std::vector<bool> gone_;
  std::string broken_;
  std::shared_ptr<Meeting> successor_;
  std::size_t successor_taken_ = 0;
};

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<Meeting> meeting, std::size_t rank)
    : meeting_(std::move(meeting)), rank_(rank) {}

ThreadCommunicator::~ThreadCommunicator() { meeting_->leave(rank_); }

std::vector<std::unique_ptr<Communicator>> ThreadCommunicator::make(std::size_t ranks) {
  if (ranks == 0) throw UserError(kThreads, "0 ranks; there has to be at least one");
  const auto meeting = std::make_shared<Meeting>(ranks);
  std::vector<std::unique_ptr<Communicator>> all;
  for (std::size_t r = 0; r < ranks; ++r)
    all.push_back(std::unique_ptr<Communicator>(new ThreadCommunicator(meeting, r)));
  return all;
}

std::size_t ThreadCommunicator::ranks() const { return meeting_->ranks(); }

std::unique_ptr<Communicator> ThreadCommunicator::duplicate() {
  const std::vector<Sent> nothing(ranks());
  const std::vector<Received> nowhere(ranks());
  exchange(nothing, nowhere);  // a rank that is gone is noticed here
  std::unique_ptr<Communicator> other(new ThreadCommunicator(meeting_->successor(), rank_));
  other->set_timeout(timeout());
  return other;
}

void ThreadCommunicator::exchange(std::span<const Sent> send, std::span<const Received> receive) {
  meeting_->exchange(rank_, send, receive, timeout());
}

void run_on_threads(std::size_t ranks, const std::function<void(Communicator&)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::jthread> threads;
  for (auto& rank : ThreadCommunicator::make(ranks)) {
    threads.emplace_back([&, communicator = std::move(rank)]() mutable {
      try {
        body(*communicator);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!first) first = std::current_exception();
      }
      communicator.reset();  // only now do the others hear of it, so what they throw is not first
    });
  }
  threads.clear();  // joins them
  if (first) std::rethrow_exception(first);
}

}  // namespace cdgrab
