// SPDX-License-Identifier: Apache-2.0
// The suite on one rank and on threads, and what threads do when one of them fails.
#include "cdgrab/communicator.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "cdgrab/error.hpp"
#include "cdgrab/self_communicator.hpp"
#include "cdgrab/thread_communicator.hpp"
#include "conformance/communicator_suite.hpp"

namespace cdgrab {
namespace {

using std::chrono::milliseconds;

TEST(SelfCommunicator, Conforms) {
  SelfCommunicator communicator;
  suite::check_communicator(communicator);
}

class ThreadCommunicatorConformance : public testing::TestWithParam<std::size_t> {};

TEST_P(ThreadCommunicatorConformance, Conforms) { run_on_threads(GetParam(), suite::check_communicator); }

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadCommunicatorConformance, testing::Values(1, 2, 3, 4, 7),
                         testing::PrintToStringParamName());

void sum_something(Communicator& communicator) {
  std::vector<double> values(10);
  communicator.sum(values);
}

/// What each rank throws; empty where it throws nothing.
std::vector<std::string> errors_of(std::size_t ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::string> errors(ranks);
  try {
    run_on_threads(ranks, [&](Communicator& communicator) {
      try {
        body(communicator);
      } catch (const CommunicationError& error) {
        errors[communicator.rank()] = error.what();
        throw;
      }
    });
  } catch (const CommunicationError&) {  // in `errors`
  }
  return errors;
}

TEST(ThreadCommunicator, ARankThatLeftIsNamedToAllOthersAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = errors_of(4, [](Communicator& communicator) {
    sum_something(communicator);
    if (communicator.rank() == 2) return;
    sum_something(communicator);
  });
  for (const std::size_t rank : {0, 1, 3}) EXPECT_NE(errors[rank].find("rank 2 is gone"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(ThreadCommunicator, ARankThatThrowsIsWhatTheCallerHears) {
  const auto body = [](Communicator& communicator) {
    if (communicator.rank() == 1) throw UserError("step 3", "my own mistake");
    sum_something(communicator);
  };
  EXPECT_THROW(run_on_threads(3, body), UserError);
}

TEST(ThreadCommunicator, ARankThatDoesNotComeIsNamedAfterTheTimeout) {
  std::mutex mutex;
  std::condition_variable changed;
  int failed = 0;
  const auto errors = errors_of(3, [&](Communicator& communicator) {
    communicator.set_timeout(milliseconds(30));
    if (communicator.rank() == 1) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return failed == 2; });
      lock.unlock();
      sum_something(communicator);
    }
    try {
      sum_something(communicator);
    } catch (const CommunicationError&) {
      const std::scoped_lock lock(mutex);
      ++failed;
      changed.notify_all();
      throw;
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("waited 30 ms for rank 1, which did not come"), std::string::npos) << error;
  }
}

TEST(ThreadCommunicator, LengthsThatDoNotAgreeFailOnAllRanks) {
  const auto errors = errors_of(4, [](Communicator& communicator) {
    std::vector<double> values(communicator.rank() == 3 ? 11 : 10);
    communicator.sum(values);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("lengths that agree"), std::string::npos) << error;
}

TEST(ThreadCommunicator, AfterAFailureEveryVerbFails) {
  run_on_threads(2, [](Communicator& communicator) {
    communicator.set_timeout(milliseconds(1));
    if (communicator.rank() == 0) {
      EXPECT_THROW(sum_something(communicator), CommunicationError);
      EXPECT_THROW(sum_something(communicator), CommunicationError);
    }
  });
}

TEST(ThreadCommunicator, NoRanksAreRefused) { EXPECT_THROW((void)ThreadCommunicator::make(0), UserError); }

}  // namespace
}  // namespace cdgrab
