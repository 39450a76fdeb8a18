// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/mpi/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <list>
#include <mutex>
#include <thread>

#include "cdgrab/error.hpp"

namespace cdgrab::mpi {
namespace {

constexpr const char* kWhere = "mpi::Communicator";
constexpr int kData = 1;     // tags
constexpr int kFailure = 2;  // a text: why the sender gave up

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void require(int code, const char* call) {
  if (code != MPI_SUCCESS)
    throw CommunicationError(kWhere, fmt::format("{} failed: {}", call, text_of(code)));
}

// Inside an exchange: why it cannot be finished.
struct Failure {
  std::string why;
};

void require_transfer(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Failure{fmt::format("{} failed: {}", call, text_of(code))};
}

bool is_initialised() {
  int yes = 0;
  MPI_Initialized(&yes);
  return yes != 0;
}

bool is_finalised() {
  int yes = 0;
  MPI_Finalized(&yes);
  return yes != 0;
}

const char* name_of_level(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    default:
      return "MPI_THREAD_MULTIPLE";
  }
}

int thread_level() {
  int level = MPI_THREAD_SINGLE;
  require(MPI_Query_thread(&level), "MPI_Query_thread");
  return level;
}

[[noreturn]] void refuse_level(const char* what) {
  throw UserError(kWhere,
                  fmt::format("{}, and MPI was initialised with {}; initialise it by MPI_Init_thread with "
                              "MPI_THREAD_MULTIPLE, or leave that to cdgrab",
                              what, name_of_level(thread_level())));
}

void require_usable_thread() {
  int main_thread = 0;
  require(MPI_Is_thread_main(&main_thread), "MPI_Is_thread_main");
  if (main_thread == 0 && thread_level() < MPI_THREAD_SERIALIZED)
    refuse_level("this thread is not the one that initialised MPI");
}

// Time between two looks. Most answers come at once; a rank that waits long leaves its core to others.
class Patience {
 public:
  explicit Patience(milliseconds limit) : begin_(Clock::now()), limit_(limit) {}

  [[nodiscard]] bool at_an_end() const { return Clock::now() - begin_ > limit_; }
  [[nodiscard]] bool long_wait() const { return pause_ > microseconds(0); }
  void wait() {
    if (Clock::now() - begin_ < kEager) {
      std::this_thread::yield();
      return;
    }
    pause_ = std::clamp(2 * pause_, kShortest, kLongest);
    std::this_thread::sleep_for(pause_);
  }

 private:
  static constexpr microseconds kEager{500};
  static constexpr microseconds kShortest{50};
  static constexpr microseconds kLongest{1000};
  Clock::time_point begin_;
  milliseconds limit_;
  microseconds pause_{0};
};

// MPI_Comm_dup that does not wait for ever.
MPI_Comm copy_of(MPI_Comm group, milliseconds timeout) {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  require(MPI_Comm_idup(group, &copy, &request), "MPI_Comm_idup");
  int done = 0;
  for (Patience patience(timeout);; patience.wait()) {
    require(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) break;
    if (patience.at_an_end()) {
      throw CommunicationError(kWhere,
                               fmt::format("not all ranks came to make a communicator within {} ms; every "
                                           "rank has to",
                                           timeout.count()));
    }
  }
  require(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

}  // namespace

// MPI itself, initialised here or by the caller.
class Communicator::Session {
 public:
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  // To finalise is to wait for all others: not when something has gone wrong.
  ~Session() {
    if (ours_ && !abandoned_ && std::uncaught_exceptions() == 0 && !is_finalised()) MPI_Finalize();
  }

  /// The one that there is, or a new one.
  static std::shared_ptr<Session> acquire(bool may_initialise) {
    static std::mutex mutex;
    static std::weak_ptr<Session> current;
    const std::scoped_lock lock(mutex);
    std::shared_ptr<Session> session = current.lock();
    if (!session) {
      initialise(may_initialise);
      session.reset(new Session);
      current = session;
    }
    return session;
  }

  static void abandon() { abandoned_ = true; }

 private:
  Session() = default;

  static void initialise(bool may_initialise) {
    if (is_finalised()) {
      throw UserError(kWhere,
                      "MPI has been finalised and cannot be initialised again; keep one communicator for as "
                      "long as others are made, or call MPI_Init_thread and MPI_Finalize yourself");
    }
    if (is_initialised()) return;
    if (!may_initialise) throw UserError(kWhere, "MPI is not initialised; call MPI_Init_thread first");
    int level = MPI_THREAD_SINGLE;
    require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    ours_ = true;
  }

  inline static std::atomic<bool> ours_ = false;
  inline static std::atomic<bool> abandoned_ = false;
};

// The messages of one exchange.
class Communicator::Transfers {
 public:
  Transfers(MPI_Comm group, std::size_t largest) : group_(group), largest_(largest) {}
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;
  // Only what failed is left here. A receive can be taken back, a send cannot.
  ~Transfers() {
    for (std::size_t k = 0; k < requests_.size(); ++k) {
      if (requests_[k] == MPI_REQUEST_NULL) continue;
      if (messages_[k].received) MPI_Cancel(&requests_[k]);
      MPI_Request_free(&requests_[k]);
    }
  }

  void receive(Received piece, std::size_t peer) {
    cut(piece, [&](Received part) {
      require_transfer(MPI_Irecv(part.data(), static_cast<int>(part.size()), MPI_BYTE, static_cast<int>(peer),
                                 kData, group_, add({peer, part.size(), true})),
                       "MPI_Irecv");
    });
  }
  void send(Sent piece, std::size_t peer) {
    cut(piece, [&](Sent part) {
      require_transfer(MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, static_cast<int>(peer),
                                 kData, group_, add({peer, part.size(), false})),
                       "MPI_Isend");
    });
  }

  /// Whether all have arrived.
  [[nodiscard]] bool finished() {
    int done = 0;
    ended_.resize(requests_.size());
    statuses_.resize(requests_.size());
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done, ended_.data(),
                                  statuses_.data());
    if (code != MPI_ERR_IN_STATUS) require_transfer(code, "MPI_Testsome");
    if (done == MPI_UNDEFINED) return true;
    for (std::size_t k = 0; k < static_cast<std::size_t>(done); ++k)
      look_at(messages_[static_cast<std::size_t>(ended_[k])], statuses_[k],
              code == MPI_SUCCESS ? MPI_SUCCESS : statuses_[k].MPI_ERROR);
    open_ -= static_cast<std::size_t>(done);
    return open_ == 0;
  }

  /// A rank that has not sent or, if all have, not taken what it should.
  [[nodiscard]] std::size_t missing() const {
    std::size_t rank = 0;
    for (std::size_t k = requests_.size(); k-- > 0;)
      if (requests_[k] != MPI_REQUEST_NULL) rank = messages_[k].peer;
    return rank;
  }

 private:
  struct Message {
    std::size_t peer;
    std::size_t bytes;
    bool received;
  };

  // At least one message, so that a rank which sends nothing has come all the same.
  template <class Piece, class Function>
  void cut(Piece piece, Function transfer) const {
    do {
      transfer(piece.first(std::min(piece.size(), largest_)));
      piece = piece.subspan(std::min(piece.size(), largest_));
    } while (!piece.empty());
  }

  MPI_Request* add(const Message& message) {
    messages_.push_back(message);
    requests_.push_back(MPI_REQUEST_NULL);
    ++open_;
    return &requests_.back();
  }

  static void look_at(const Message& message, const MPI_Status& status, int code) {
    int kind = MPI_SUCCESS;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE) refuse_length(message, "more");
    if (kind != MPI_SUCCESS) {
      throw Failure{fmt::format("a message {} rank {} failed: {}", message.received ? "from" : "to",
                                message.peer, text_of(code))};
    }
    int count = 0;
    if (message.received) MPI_Get_count(&status, MPI_BYTE, &count);
    if (message.received && static_cast<std::size_t>(count) != message.bytes)
      refuse_length(message, fmt::format("{} bytes", count));
  }
  [[noreturn]] static void refuse_length(const Message& message, const std::string& came) {
    throw Failure{
        fmt::format("rank {} sent {} where {} bytes are expected; all ranks have to call the same verbs "
                    "with lengths that agree",
                    message.peer, came, message.bytes)};
  }

  MPI_Comm group_;
  std::size_t largest_;
  std::vector<Message> messages_;
  std::vector<MPI_Request> requests_;
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
  std::size_t open_ = 0;
};

Communicator::Communicator(const Options& options)
    : Communicator(Session::acquire(true), MPI_COMM_WORLD, options, std::chrono::minutes(10)) {}

Communicator::Communicator(MPI_Comm group, const Options& options)
    : Communicator(Session::acquire(false), group, options, std::chrono::minutes(10)) {}

Communicator::Communicator(std::shared_ptr<Session> session, MPI_Comm group, const Options& options,
                           milliseconds timeout)
    : session_(std::move(session)), options_(options), exceptions_(std::uncaught_exceptions()) {
  constexpr std::size_t kMost = std::numeric_limits<int>::max();
  if (options_.largest_message == 0 || options_.largest_message > kMost) {
    throw UserError(
        kWhere, fmt::format("largest_message is {}; give 1 to {} bytes", options_.largest_message, kMost));
  }
  require_usable_thread();
  set_timeout(timeout);
  group_ = copy_of(group, timeout);
  int number = 0;
  require(MPI_Comm_rank(group_, &number), "MPI_Comm_rank");
  rank_ = static_cast<std::size_t>(number);
  require(MPI_Comm_size(group_, &number), "MPI_Comm_size");
  ranks_ = static_cast<std::size_t>(number);
}

Communicator::~Communicator() {
  if (is_finalised() || !broken_.empty()) return;
  if (std::uncaught_exceptions() > exceptions_) {
    tell_others(fmt::format("rank {} has left because of an exception; see what it says", rank_));
  } else {
    MPI_Comm_free(&group_);
  }
}

std::unique_ptr<cdgrab::Communicator> Communicator::duplicate() {
  if (thread_level() < MPI_THREAD_MULTIPLE) refuse_level("a second communicator is for a second thread");
  return std::unique_ptr<Communicator>(new Communicator(session_, group_, options_, timeout()));
}

void Communicator::exchange(std::span<const Sent> send, std::span<const Received> receive) try {
  if (!broken_.empty()) throw CommunicationError(kWhere, broken_);
  Transfers transfers(group_, options_.largest_message);
  // Each rank begins with its neighbour, so that not all send to the same one at once.
  for (std::size_t k = 1; k < ranks_; ++k)
    transfers.receive(receive[(rank_ + k) % ranks_], (rank_ + k) % ranks_);
  for (std::size_t k = 1; k < ranks_; ++k) transfers.send(send[(rank_ + k) % ranks_], (rank_ + k) % ranks_);
  for (Patience patience(timeout()); !transfers.finished(); patience.wait()) {
    if (patience.long_wait()) hear_of_failure();
    if (patience.at_an_end()) {
      throw Failure{
          fmt::format("rank {} waited {} ms for rank {}, which did not come; see what it does, or allow "
                      "more by set_timeout()",
                      rank_, timeout().count(), transfers.missing())};
    }
  }
} catch (const Failure& failure) {
  tell_others(failure.why);
  break_off(failure.why);
}

void Communicator::break_off(const std::string& why) {
  broken_ = why;
  Session::abandon();
  throw CommunicationError(kWhere, why);
}

void Communicator::hear_of_failure() {
  int heard = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, kFailure, group_, &heard, &status) != MPI_SUCCESS || heard == 0) return;
  int length = 0;
  MPI_Get_count(&status, MPI_CHAR, &length);
  std::string why(static_cast<std::size_t>(length), ' ');
  MPI_Recv(why.data(), length, MPI_CHAR, status.MPI_SOURCE, kFailure, group_, MPI_STATUS_IGNORE);
  break_off(why);
}

void Communicator::tell_others(const std::string& why) {
  static std::mutex mutex;
  static std::list<std::string> texts;  // MPI may read them later
  const std::scoped_lock lock(mutex);
  texts.push_back(why);
  for (std::size_t r = 0; r < ranks_; ++r) {
    if (r == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(texts.back().data(), static_cast<int>(texts.back().size()), MPI_CHAR, static_cast<int>(r),
              kFailure, group_, &request);
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
}

}  // namespace cdgrab::mpi
