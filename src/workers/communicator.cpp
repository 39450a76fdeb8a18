// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cdgrab/error.hpp"

namespace cdgrab {
namespace {

using Sent = Communicator::Sent;
using Received = Communicator::Received;

// What another round of messages costs, in bytes that could have been sent meanwhile: some 8 us at 1 GB/s.
constexpr double kRoundBytes = 8 * 1024;

// In one round a rank sends all its values to every other; in two, a piece to each and its own piece to all.
bool one_round_is_less(std::size_t values, std::size_t ranks) {
  const double one = static_cast<double>((ranks - 1) * values * sizeof(double));
  const double two = 2.0 * one / static_cast<double>(ranks);
  return one <= two + kRoundBytes;
}

// n values cut into as many pieces as there are ranks.
struct Pieces {
  std::size_t n;
  std::size_t ranks;
  [[nodiscard]] std::size_t begin(std::size_t r) const { return n / ranks * r + std::min(r, n % ranks); }
  [[nodiscard]] std::size_t size(std::size_t r) const { return begin(r + 1) - begin(r); }
  template <class T>
  [[nodiscard]] std::span<T> of(std::span<T> values, std::size_t r) const {
    return values.subspan(begin(r), size(r));
  }
};

// `table` has one row per rank: where each is to arrive.
std::vector<Received> rows_of(std::vector<double>& table, std::size_t ranks) {
  const std::size_t length = table.size() / ranks;
  std::vector<Received> rows(ranks);
  for (std::size_t r = 0; r < ranks; ++r)
    rows[r] = std::as_writable_bytes(std::span(table).subspan(r * length, length));
  return rows;
}

// Rank 0's row, plus rank 1's, plus rank 2's ..: what a sum is by contract.
void add_rows(const std::vector<double>& table, std::span<double> sum) {
  std::copy_n(table.begin(), sum.size(), sum.begin());
  for (std::size_t at = sum.size(); at < table.size(); at += sum.size())
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += table[at + k];
}

// What all_gather sends before lengths are known: short pieces whole.
struct Beginning {
  std::uint64_t length = 0;
  std::array<std::byte, 72> bytes{};

  explicit Beginning(Sent piece = {}) : length(piece.size()) {
    std::copy_n(piece.begin(), std::min(piece.size(), bytes.size()), bytes.begin());
  }
  [[nodiscard]] Sent here() const { return Sent(bytes).first(std::min<std::size_t>(length, bytes.size())); }
};
static_assert(sizeof(Beginning) == 80);

template <class Piece>
std::uint64_t bytes_of_others(std::span<const Piece> pieces, std::size_t own) {
  std::uint64_t bytes = 0;
  for (std::size_t r = 0; r < pieces.size(); ++r)
    if (r != own) bytes += pieces[r].size();
  return bytes;
}

void require_pieces(const Communicator& communicator, std::span<const Sent> send,
                    std::span<const Received> receive) {
  const std::size_t ranks = communicator.ranks();
  if (send.size() != ranks || receive.size() != ranks) {
    throw UserError("Communicator",
                    fmt::format("{} pieces to send and {} to receive, but there are {} ranks; give one of "
                                "each per rank",
                                send.size(), receive.size(), ranks));
  }
  const std::size_t own = communicator.rank();
  if (send[own].size() != receive[own].size()) {
    throw UserError("Communicator",
                    fmt::format("rank {} gives itself {} bytes and takes {}; make the two lengths equal", own,
                                send[own].size(), receive[own].size()));
  }
}

}  // namespace

Traffic Communicator::traffic(Verb verb) const {
  const Counters& counters = traffic_.at(static_cast<std::size_t>(verb));
  return {counters.calls, counters.sent, counters.received};
}

void Communicator::move(Verb verb, std::span<const Sent> send, std::span<const Received> receive) {
  require_pieces(*this, send, receive);
  const std::size_t own = rank();
  if (!send[own].empty()) std::memmove(receive[own].data(), send[own].data(), send[own].size());
  Counters& traffic = traffic_[static_cast<std::size_t>(verb)];
  traffic.sent += bytes_of_others(send, own);
  traffic.received += bytes_of_others(receive, own);
  if (ranks() > 1) exchange(send, receive);
}

void Communicator::gather(Verb verb, Sent mine, std::span<const Received> pieces) {
  const std::vector<Sent> send(ranks(), mine);
  move(verb, send, pieces);
}

void Communicator::sum(std::span<double> values) {
  ++traffic_[static_cast<std::size_t>(Verb::kSum)].calls;
  if (one_round_is_less(values.size(), ranks())) {
    sum_of_all(values);
  } else {
    sum_by_pieces(values);
  }
}

void Communicator::sum_of_all(std::span<double> values) {
  std::vector<double> table(ranks() * values.size());
  gather(Verb::kSum, std::as_bytes(values), rows_of(table, ranks()));
  add_rows(table, values);
}

void Communicator::sum_by_pieces(std::span<double> values) {
  const Pieces pieces{values.size(), ranks()};
  const std::span<double> own = pieces.of(values, rank());
  std::vector<double> table(ranks() * own.size());
  std::vector<Sent> send(ranks());
  std::vector<Received> receive(ranks());
  for (std::size_t r = 0; r < ranks(); ++r) {
    send[r] = std::as_bytes(pieces.of(values, r));
    receive[r] = std::as_writable_bytes(pieces.of(values, r));
  }
  move(Verb::kSum, send, rows_of(table, ranks()));
  add_rows(table, own);
  gather(Verb::kSum, std::as_bytes(own), receive);
}

std::vector<std::vector<std::byte>> Communicator::all_gather(Sent mine) {
  ++traffic_[static_cast<std::size_t>(Verb::kAllGather)].calls;
  const Beginning own(mine);
  std::vector<Beginning> beginnings(ranks());
  std::vector<Received> receive(ranks());
  for (std::size_t r = 0; r < ranks(); ++r) receive[r] = std::as_writable_bytes(std::span(&beginnings[r], 1));
  gather(Verb::kAllGather, std::as_bytes(std::span(&own, 1)), receive);

  std::vector<std::vector<std::byte>> gathered(ranks());
  bool finished = true;
  for (std::size_t r = 0; r < ranks(); ++r) {
    const Sent here = beginnings[r].here();
    gathered[r].resize(beginnings[r].length);
    std::copy(here.begin(), here.end(), gathered[r].begin());
    receive[r] = std::span(gathered[r]).subspan(here.size());
    finished = finished && receive[r].empty();
  }
  if (!finished) gather(Verb::kAllGather, mine.subspan(own.here().size()), receive);
  return gathered;
}

void Communicator::all_gather(Sent mine, std::span<const Received> pieces) {
  ++traffic_[static_cast<std::size_t>(Verb::kAllGather)].calls;
  gather(Verb::kAllGather, mine, pieces);
}

void Communicator::all_to_all(std::span<const Sent> send, std::span<const Received> receive) {
  ++traffic_[static_cast<std::size_t>(Verb::kAllToAll)].calls;
  move(Verb::kAllToAll, send, receive);
}

}  // namespace cdgrab
