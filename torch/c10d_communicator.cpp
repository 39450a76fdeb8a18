// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/torch/c10d_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "autograd.hpp"
#include "cdgrab/error.hpp"

namespace cdgrab::torch {
namespace {

using std::chrono::milliseconds;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Sent = Communicator::Sent;
using Received = Communicator::Received;

constexpr const char* kWhere = "C10dCommunicator";

/// Why nothing is sent any more.
struct Failure {
  std::string why;
};

/// The memory itself, as torch wants to see it.
Tensor bytes_of(Received piece) {
  return at::from_blob(piece.data(), {static_cast<std::int64_t>(piece.size())}, at::kByte);
}
Tensor bytes_of(Sent piece) {
  // from_blob has no other; it is only read
  return bytes_of(Received{const_cast<std::byte*>(piece.data()), piece.size()});
}

class Deadline {
 public:
  explicit Deadline(milliseconds timeout) : timeout_(timeout), end_(Clock::now() + timeout) {}
  [[nodiscard]] std::int64_t count() const { return timeout_.count(); }
  /// Transports count in whole milliseconds, and not all from the same moment.
  [[nodiscard]] bool over() const { return Clock::now() + milliseconds(20) >= end_; }
  /// What is left, at least a millisecond: none at all would mean for ever.
  [[nodiscard]] milliseconds left() const {
    return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(end_ - Clock::now()));
  }

 private:
  using Clock = std::chrono::steady_clock;
  milliseconds timeout_;
  Clock::time_point end_;
};

/// Without torch's backtrace, and the place in gloo's sources that its errors begin with.
std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[') && text.find("] ") != std::string::npos) text.erase(0, text.find("] ") + 2);
  return text;
}

void require_length(std::uint64_t sent, std::size_t expected, std::size_t peer) {
  if (sent == expected) return;
  throw Failure{
      fmt::format("rank {} sent {} bytes where {} bytes are expected; all ranks have to call the same verbs "
                  "with lengths that agree",
                  peer, sent, expected)};
}

GroupPtr resolve(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const std::exception&) {
    throw UserError(kWhere,
                    fmt::format("no process group is called \"{}\"; give group.group_name of one that "
                                "torch.distributed has made in this process",
                                name));
  }
}

std::vector<at::Device> devices_of(const GroupPtr& group) {
  std::vector<at::Device> devices = group->getDeviceTypes();
  if (devices.empty()) devices.emplace_back(at::kCPU);  // a group that is written in Python
  return devices;
}

/// Where messages live.
at::Device device_of(const GroupPtr& group) {
  const std::vector<at::Device> devices = devices_of(group);
  for (const at::Device& device : devices)
    if (device.is_cpu()) return device;
  return group->getBoundDeviceId().value_or(devices.front());
}

/// The k-th communicator of a group has the k-th pair of tags, in every process. They are far from those that
/// people use.
int next_tags(const std::string& group) {
  static std::mutex mutex;
  static std::map<std::string, int> made;
  constexpr int kFirst = 0x63640000;
  const std::scoped_lock lock(mutex);
  return kFirst + 2 * (made[group]++ % 0x8000);
}

}  // namespace

class C10dCommunicator::Group {
 public:
  using Spare = std::shared_ptr<std::deque<std::string>>;

  Group(GroupPtr group, bool all_to_all, Spare spare)
      : group_(std::move(group)),
        device_(device_of(group_)),
        all_to_all_(all_to_all || !device_.is_cpu()),
        spare_(std::move(spare)),
        tags_(all_to_all_ ? 0 : next_tags(group_->getGroupName())),
        rank_(static_cast<std::size_t>(group_->getRank())),
        ranks_(static_cast<std::size_t>(group_->getSize())) {}

  [[nodiscard]] std::unique_ptr<Group> another() const {
    if (!all_to_all_) return std::make_unique<Group>(group_, false, spare_);
    if (spare_->empty())
      throw UserError(
          kWhere,
          "a duplicate of a communicator that sends by all_to_all, whose groups cannot be shared; "
          "make another group of the same ranks and name it in C10dOptions::spare");
    const std::string name = spare_->front();
    spare_->pop_front();
    return std::make_unique<Group>(resolve(name), true, spare_);
  }

  GroupPtr group_;
  at::Device device_;
  bool all_to_all_;
  Spare spare_;
  int tags_;
  std::size_t rank_;
  std::size_t ranks_;
  std::string broken_;
};

/// A frame of one size for every other rank, with the length of its piece and the piece's beginning, and the
/// rest in a message of its own: a receiver that expects another length must not find it out from the
/// transport, which stops the process (gloo).
class C10dCommunicator::Messages {
 public:
  Messages(Group& group, milliseconds timeout) : group_(group), deadline_(timeout) {}

  void run(std::span<const Sent> send, std::span<const Received> receive) {
    frames_.resize(2 * group_.ranks_);
    // Each rank begins with its neighbour, so that not all send to the same one at once.
    for_others([&](std::size_t peer) { transfer(bytes_of(Received(in(peer))), peer, kFrame, true); });
    for_others([&](std::size_t peer) { send_piece(send[peer], peer); });
    for_others([&](std::size_t peer) { wait(peer, true); });
    for_others([&](std::size_t peer) { begin_piece(receive[peer], peer); });
    for_others([&](std::size_t peer) { wait(peer, true); });
    for_others([&](std::size_t peer) { wait(peer, false); });
  }

 private:
  static constexpr std::size_t kBeginning = 120;  // what most heads and sums fit into
  using Frame = std::array<std::byte, sizeof(std::uint64_t) + kBeginning>;
  enum Tag { kFrame, kRest };
  struct Transfer {
    WorkPtr work;
    std::size_t peer;
    bool received;
  };

  template <class Function>
  void for_others(const Function& function) const {
    for (std::size_t k = 1; k < group_.ranks_; ++k) function((group_.rank_ + k) % group_.ranks_);
  }
  Frame& in(std::size_t peer) { return frames_[peer]; }
  Frame& out(std::size_t peer) { return frames_[group_.ranks_ + peer]; }

  void transfer(const Tensor& bytes, std::size_t peer, Tag tag, bool received) {
    std::vector<Tensor> one{bytes};
    attempt(peer, [&] {
      const int rank = static_cast<int>(peer);
      transfers_.push_back({received ? group_.group_->recv(one, rank, group_.tags_ + tag)
                                     : group_.group_->send(one, rank, group_.tags_ + tag),
                            peer, received});
    });
  }

  void send_piece(Sent piece, std::size_t peer) {
    const std::uint64_t length = piece.size();
    const Sent beginning = piece.first(std::min(piece.size(), kBeginning));
    std::memcpy(out(peer).data(), &length, sizeof(length));
    if (!beginning.empty())
      std::memcpy(out(peer).data() + sizeof(length), beginning.data(), beginning.size());
    transfer(bytes_of(Sent(out(peer))), peer, kFrame, false);
    if (piece.size() > kBeginning) transfer(bytes_of(piece.subspan(kBeginning)), peer, kRest, false);
  }

  /// The frame is there.
  void begin_piece(Received piece, std::size_t peer) {
    std::uint64_t length = 0;
    std::memcpy(&length, in(peer).data(), sizeof(length));
    require_length(length, piece.size(), peer);
    const std::size_t beginning = std::min(piece.size(), kBeginning);
    if (beginning != 0) std::memcpy(piece.data(), in(peer).data() + sizeof(length), beginning);
    if (piece.size() > kBeginning) transfer(bytes_of(piece.subspan(kBeginning)), peer, kRest, true);
  }

  /// For all that was begun with this rank, in this direction.
  void wait(std::size_t peer, bool received) {
    for (Transfer& t : transfers_) {
      if (t.peer != peer || t.received != received || !t.work) continue;
      attempt(peer, [&] { t.work->wait(deadline_.left()); });
      t.work.reset();
    }
  }

  template <class Function>
  void attempt(std::size_t peer, const Function& function) const {
    try {
      function();
    } catch (const std::exception& error) {
      if (deadline_.over())
        throw Failure{
            fmt::format("rank {} waited {} ms for rank {}, which did not come; see what it does, or allow "
                        "more by timeout= (in C++ set_timeout())",
                        group_.rank_, deadline_.count(), peer)};
      throw Failure{fmt::format("rank {} lost rank {}: {}", group_.rank_, peer, text_of(error))};
    }
  }

  Group& group_;
  Deadline deadline_;
  std::vector<Frame> frames_;
  std::vector<Transfer> transfers_;
};

/// Lengths first, for the same reason.
class C10dCommunicator::AllToAll {
 public:
  AllToAll(Group& group, milliseconds timeout) : group_(group), deadline_(timeout) {}

  void run(std::span<const Sent> send, std::span<const Received> receive) {
    std::vector<std::uint64_t> given(group_.ranks_);
    std::vector<std::uint64_t> got(group_.ranks_);
    std::vector<std::int64_t> to(group_.ranks_);
    std::vector<std::int64_t> from(group_.ranks_);
    for_others([&](std::size_t peer) {
      given[peer] = send[peer].size();
      to[peer] = static_cast<std::int64_t>(send[peer].size());
      from[peer] = static_cast<std::int64_t>(receive[peer].size());
    });
    std::vector<std::int64_t> eight(group_.ranks_, sizeof(std::uint64_t));
    const Tensor lengths = move(bytes_of(std::as_bytes(std::span(given))), eight, eight);
    std::memcpy(got.data(), lengths.const_data_ptr(), lengths.nbytes());
    for_others([&](std::size_t peer) { require_length(got[peer], receive[peer].size(), peer); });

    std::vector<Tensor> pieces{at::empty({0}, at::kByte)};
    for (std::size_t peer = 0; peer < group_.ranks_; ++peer)
      if (peer != group_.rank_) pieces.push_back(bytes_of(send[peer]));
    const Tensor all = move(at::cat(pieces), to, from);
    std::int64_t at = 0;
    for (std::size_t peer = 0; peer < group_.ranks_; ++peer) {
      if (from[peer] != 0)
        std::memcpy(receive[peer].data(), all.const_data_ptr<std::uint8_t>() + at, receive[peer].size());
      at += from[peer];
    }
  }

 private:
  template <class Function>
  void for_others(const Function& function) const {
    for (std::size_t peer = 0; peer < group_.ranks_; ++peer)
      if (peer != group_.rank_) function(peer);
  }

  /// What comes, in the order of the ranks, in the memory of the CPU.
  Tensor move(const Tensor& bytes, std::vector<std::int64_t>& to, std::vector<std::int64_t>& from) const {
    Tensor input = bytes.to(group_.device_);
    std::int64_t total = 0;
    for (const std::int64_t length : from) total += length;
    Tensor output = at::empty({total}, at::TensorOptions(at::kByte).device(group_.device_));
    c10d::AllToAllOptions options;
    options.timeout = deadline_.left();
    try {
      group_.group_->all_to_all_single(output, input, from, to, options)->wait(deadline_.left());
      return output.to(at::kCPU);
    } catch (const std::exception& error) {
      if (deadline_.over())
        throw Failure{
            fmt::format("rank {} waited {} ms for the others, and one did not come; see what they do, or "
                        "allow more by timeout= (in C++ set_timeout())",
                        group_.rank_, deadline_.count())};
      throw Failure{fmt::format("rank {} lost another: {}", group_.rank_, text_of(error))};
    }
  }

  Group& group_;
  Deadline deadline_;
};

C10dCommunicator::C10dCommunicator(const std::string& group, const C10dOptions& options)
    : C10dCommunicator(resolve(group), options) {}

C10dCommunicator::C10dCommunicator(const GroupPtr& group, const C10dOptions& options)
    : group_(std::make_unique<Group>(
          group, options.all_to_all,
          std::make_shared<std::deque<std::string>>(options.spare.begin(), options.spare.end()))) {}

C10dCommunicator::C10dCommunicator(std::unique_ptr<Group> group) : group_(std::move(group)) {}
C10dCommunicator::~C10dCommunicator() = default;

std::size_t C10dCommunicator::rank() const { return group_->rank_; }
std::size_t C10dCommunicator::ranks() const { return group_->ranks_; }

std::unique_ptr<Communicator> C10dCommunicator::duplicate() {
  std::unique_ptr<Communicator> other(new C10dCommunicator(group_->another()));
  other->set_timeout(timeout());
  return other;
}

void C10dCommunicator::exchange(std::span<const Sent> send, std::span<const Received> receive) {
  if (!group_->broken_.empty()) throw CommunicationError(kWhere, group_->broken_);
  const at::NoGradGuard no_grad;
  try {
    if (group_->all_to_all_)
      AllToAll(*group_, timeout()).run(send, receive);
    else
      Messages(*group_, timeout()).run(send, receive);
  } catch (const Failure& failure) {
    group_->broken_ = failure.why;
    throw CommunicationError(kWhere, failure.why);
  }
}

}  // namespace cdgrab::torch
