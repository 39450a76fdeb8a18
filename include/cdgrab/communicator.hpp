// SPDX-License-Identifier: Apache-2.0
// Ranks that work together: processes or threads that call the same verbs in the same sequence. One transport
// verb, exchange(), carries them all, so what a sum returns is defined here and not by the transport.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace cdgrab {

enum class Verb { kSum, kAllGather, kAllToAll };
inline constexpr std::size_t kVerbs = 3;

/// Bytes that left this rank for others and came from them, as they were given: what a rank keeps for itself
/// is not counted, nor is what a transport adds. all_gather of unknown lengths sends 80 bytes to
/// each, in which 72 of its piece have room, and then the rest.
struct Traffic {
  std::uint64_t calls = 0;  ///< of the verb
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
};

/// Every verb is collective: each rank calls it, and returns when it has what it needs of the others. If one
/// does not come within timeout(), or is gone, the others throw CommunicationError, naming it where they
/// know. After that the communicator is of no use. One thread at a time.
class Communicator {
 public:
  using Sent = std::span<const std::byte>;
  using Received = std::span<std::byte>;

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] virtual std::size_t rank() const = 0;
  [[nodiscard]] virtual std::size_t ranks() const = 0;

  /// values[k] becomes the sum of all ranks' values[k], added in the order of the ranks: the same bits
  /// everywhere. The same length on all ranks.
  void sum(std::span<double> values);
  /// What each rank gave, by rank. Lengths may differ, and need not be known.
  [[nodiscard]] std::vector<std::vector<std::byte>> all_gather(Sent mine);
  /// The same where lengths are known: rank r's bytes arrive in pieces[r].
  void all_gather(Sent mine, std::span<const Received> pieces);
  /// send[r] goes to rank r, and receive[r] is filled by it; their lengths agree, and may be 0.
  void all_to_all(std::span<const Sent> send, std::span<const Received> receive);

  /// Another one of the same ranks, for another thread: the two do not meet. Collective.
  [[nodiscard]] virtual std::unique_ptr<Communicator> duplicate() = 0;

  /// So far; any thread may ask.
  [[nodiscard]] Traffic traffic(Verb verb) const;
  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  /// 10 minutes at first.
  virtual void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

 protected:
  Communicator() = default;
  /// send[r] to every other rank r, and receive[r] from it; both have ranks() pieces. What a rank gives
  /// itself is in place already. A piece whose length is not what the other rank expects is a
  /// CommunicationError.
  virtual void exchange(std::span<const Sent> send, std::span<const Received> receive) = 0;

 private:
  void move(Verb verb, std::span<const Sent> send, std::span<const Received> receive);
  void gather(Verb verb, Sent mine, std::span<const Received> pieces);
  void sum_by_pieces(std::span<double> values);
  void sum_of_all(std::span<double> values);

  struct Counters {
    std::atomic<std::uint64_t> calls = 0;
    std::atomic<std::uint64_t> sent = 0;
    std::atomic<std::uint64_t> received = 0;
  };
  std::array<Counters, kVerbs> traffic_{};
  std::chrono::milliseconds timeout_ = std::chrono::minutes(10);
};

}  // namespace cdgrab
