// SPDX-License-Identifier: Apache-2.0
#include "conformance/communicator_suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

#include "cdgrab/error.hpp"

namespace cdgrab::suite {
namespace {

using Bytes = std::vector<std::byte>;
using Sent = Communicator::Sent;
using Received = Communicator::Received;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

template <class A, class B>
void require_equal(const A& got, const B& expected, const std::string& what) {
  require(got == expected, fmt::format("{}: {} instead of {}", what, got, expected));
}

/// Any rank can tell what another one gives. Magnitudes far apart, so that the order of an addition shows.
std::vector<double> values_of(std::size_t rank, std::size_t length, std::uint64_t salt) {
  std::vector<double> values(length);
  std::uint64_t bits = 1 + rank + 1000 * salt;
  for (std::size_t k = 0; k < length; ++k) {
    bits = bits * 6364136223846793005U + 1442695040888963407U;
    const double magnitude = static_cast<double>(std::uint64_t{1} << ((k * 31 + rank * 17) % 60));
    values[k] = k % 11 == 3 ? -0.0 : static_cast<double>(static_cast<std::int64_t>(bits)) * magnitude;
  }
  return values;
}

Bytes bytes_of(std::size_t from, std::size_t to, std::size_t length) {
  Bytes bytes(length);
  for (std::size_t k = 0; k < length; ++k)
    bytes[k] = static_cast<std::byte>(k * 7 + k / 251 + from * 31 + to * 101);
  return bytes;
}

std::vector<double> dull_sum(std::size_t ranks, std::size_t length, std::uint64_t salt) {
  std::vector<double> sum = values_of(0, length, salt);
  for (std::size_t r = 1; r < ranks; ++r) {
    const std::vector<double> values = values_of(r, length, salt);
    for (std::size_t k = 0; k < length; ++k) sum[k] += values[k];
  }
  return sum;
}

void check_sum(Communicator& communicator, std::size_t length, std::uint64_t salt) {
  std::vector<double> values = values_of(communicator.rank(), length, salt);
  communicator.sum(values);
  const std::vector<double> expected = dull_sum(communicator.ranks(), length, salt);
  for (std::size_t k = 0; k < length; ++k)
    require(std::memcmp(&values[k], &expected[k], sizeof(double)) == 0,
            fmt::format("value {} of {}: {:a} instead of {:a}", k, length, values[k], expected[k]));
}

using Length = std::function<std::size_t(std::size_t)>;

void require_gathered(const std::vector<Bytes>& pieces, const Length& length_of) {
  for (std::size_t r = 0; r < pieces.size(); ++r)
    require(pieces[r] == bytes_of(r, 0, length_of(r)), fmt::format("what rank {} gave is not what came", r));
}

void check_gather(Communicator& communicator, const Length& length_of) {
  const std::size_t own = communicator.rank();
  const std::vector<Bytes> gathered = communicator.all_gather(bytes_of(own, 0, length_of(own)));
  require_equal(gathered.size(), communicator.ranks(), "pieces");
  require_gathered(gathered, length_of);
}

void check_gather_of_known(Communicator& communicator, const Length& length_of) {
  std::vector<Bytes> got(communicator.ranks());
  for (std::size_t r = 0; r < got.size(); ++r) got[r].resize(length_of(r));
  const std::size_t own = communicator.rank();
  communicator.all_gather(bytes_of(own, 0, length_of(own)), std::vector<Received>(got.begin(), got.end()));
  require_gathered(got, length_of);
}

void check_all_to_all(Communicator& communicator,
                      const std::function<std::size_t(std::size_t, std::size_t)>& length_of) {
  const std::size_t ranks = communicator.ranks();
  const std::size_t own = communicator.rank();
  std::vector<Bytes> given(ranks);
  std::vector<Bytes> got(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    given[r] = bytes_of(own, r, length_of(own, r));
    got[r].resize(length_of(r, own));
  }
  communicator.all_to_all(std::vector<Sent>(given.begin(), given.end()),
                          std::vector<Received>(got.begin(), got.end()));
  for (std::size_t r = 0; r < ranks; ++r) {
    require(got[r] == bytes_of(r, own, got[r].size()), fmt::format("what rank {} gave is not what came", r));
    require(given[r] == bytes_of(own, r, given[r].size()), "what was given has changed");
  }
}

void ranks_are_numbered(Communicator& communicator) {
  require(communicator.rank() < communicator.ranks(), "rank() is not below ranks()");
  const std::uint64_t own = communicator.rank();
  const auto all = communicator.all_gather(std::as_bytes(std::span(&own, 1)));
  for (std::uint64_t r = 0; r < all.size(); ++r)
    require(std::memcmp(all[r].data(), &r, sizeof(r)) == 0, fmt::format("rank {} is at another place", r));
}

void sums_have_the_bits_of_the_dull_sum(Communicator& communicator) {
  const std::size_t ranks = communicator.ranks();
  std::uint64_t salt = 0;
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{1}, std::size_t{2}, ranks - 1, ranks, ranks + 1, std::size_t{17},
        std::size_t{1000}, std::size_t{3001}, std::size_t{20001}})
    check_sum(communicator, length, ++salt);
}

void gathered_pieces_may_have_any_length(Communicator& communicator) {
  check_gather(communicator, [](std::size_t) { return 0UL; });
  check_gather(communicator, [](std::size_t) { return 1UL; });
  check_gather(communicator, [](std::size_t r) { return r; });
  check_gather(communicator, [](std::size_t r) { return r % 2 == 0 ? 0UL : 1000 * r + 1; });
  check_gather(communicator, [](std::size_t r) { return r == 0 ? 5000UL : 0UL; });
  check_gather(communicator, [](std::size_t r) { return 70 + r; });  // about what travels with its length
}

void gathered_pieces_arrive_where_they_are_wanted(Communicator& communicator) {
  check_gather_of_known(communicator, [](std::size_t r) { return r % 3 == 1 ? 0UL : 100 + r; });
}

void pieces_for_each_rank_may_have_any_length(Communicator& communicator) {
  check_all_to_all(communicator, [](std::size_t, std::size_t) { return 0UL; });
  check_all_to_all(communicator, [](std::size_t, std::size_t) { return 8UL; });
  check_all_to_all(communicator, [](std::size_t a, std::size_t b) { return (a * 7 + b * 3) % 4 * 501; });
  check_all_to_all(communicator, [](std::size_t a, std::size_t b) { return a == 0 && b > 0 ? 777UL : 0UL; });
}

void megabytes_arrive_whole(Communicator& communicator) {
  constexpr std::size_t kLarge = 3 * 1024 * 1024 + 5;
  check_all_to_all(communicator,
                   [](std::size_t a, std::size_t b) { return a == 0 || b == 0 ? kLarge : 1000UL; });
  check_gather(communicator, [](std::size_t r) { return r == 0 ? kLarge : 3UL; });
  check_sum(communicator, 150'001, 99);
}

void hundreds_of_small_verbs_follow_each_other(Communicator& communicator) {
  for (std::uint64_t k = 0; k < 150; ++k) {
    check_sum(communicator, k % 7, 1000 + k);
    check_gather(communicator, [&](std::size_t r) { return (r + k) % 5; });
    check_all_to_all(communicator, [&](std::size_t a, std::size_t b) { return (a + 2 * b + k) % 6; });
  }
}

void a_duplicate_does_not_meet_the_original(Communicator& communicator) {
  const std::unique_ptr<Communicator> other = communicator.duplicate();
  require_equal(other->rank(), communicator.rank(), "the duplicate's rank");
  require_equal(other->ranks(), communicator.ranks(), "the duplicate's ranks");
  require(other->timeout() == communicator.timeout(), "the duplicate has another timeout");
  std::exception_ptr error;
  std::thread beside([&] {
    try {
      for (std::uint64_t k = 0; k < 100; ++k) check_sum(*other, 20 + k % 3, 2000 + k);
    } catch (...) {
      error = std::current_exception();
    }
  });
  try {
    for (std::uint64_t k = 0; k < 100; ++k)
      check_gather(communicator, [&](std::size_t r) { return 160 + r + k % 3; });
  } catch (...) {
    error = std::current_exception();
  }
  beside.join();
  if (error) std::rethrow_exception(error);
}

void a_duplicate_may_be_made_again_and_go(Communicator& communicator) {
  for (std::uint64_t k = 0; k < 5; ++k) {
    const auto first = communicator.duplicate();
    const auto second = first->duplicate();
    check_sum(*second, 3, k);
    check_sum(*first, 4, k);
  }
  check_sum(communicator, 5, 0);
}

/// What `verb` added to the counts of `which`; the other verbs' must not have moved.
Traffic added(Communicator& communicator, Verb which, const std::function<void()>& verb) {
  std::vector<Traffic> before;
  for (const Verb v : {Verb::kSum, Verb::kAllGather, Verb::kAllToAll})
    before.push_back(communicator.traffic(v));
  verb();
  for (const Verb v : {Verb::kSum, Verb::kAllGather, Verb::kAllToAll}) {
    const Traffic& was = before[static_cast<std::size_t>(v)];
    const Traffic& is = communicator.traffic(v);
    if (v != which)
      require(was.calls == is.calls && was.sent == is.sent && was.received == is.received,
              "another verb was counted");
  }
  const Traffic& was = before[static_cast<std::size_t>(which)];
  const Traffic& is = communicator.traffic(which);
  return {is.calls - was.calls, is.sent - was.sent, is.received - was.received};
}

void require_traffic(const Traffic& got, std::uint64_t sent, std::uint64_t received,
                     const std::string& what) {
  require_equal(got.calls, 1U, what + ", calls");
  require_equal(got.sent, sent, what + ", bytes sent");
  require_equal(got.received, received, what + ", bytes received");
}

void traffic_is_counted_as_documented(Communicator& communicator) {
  const std::uint64_t ranks = communicator.ranks();
  const std::uint64_t others = ranks - 1;
  const std::uint64_t own = communicator.rank();
  const std::uint64_t of_others = ranks * others / 2 - own;  // the sum of their numbers
  const auto sum = [&](std::size_t length) {
    return added(communicator, Verb::kSum, [&] { check_sum(communicator, length, 7); });
  };
  require_traffic(sum(10), others * 80, others * 80, "a short sum");
  require_traffic(sum(ranks * 20000), 2 * others * 160'000, 2 * others * 160'000, "a long sum");
  require_traffic(sum(0), 0, 0, "an empty sum");
  const auto gather = [&](const Length& length_of) {
    return added(communicator, Verb::kAllGather, [&] { check_gather(communicator, length_of); });
  };
  require_traffic(gather([](std::size_t r) { return 72 - r; }), others * 80, others * 80,
                  "all_gather of short pieces of unknown lengths");
  require_traffic(gather([](std::size_t r) { return 72 + 10 * r; }), others * (80 + 10 * own),
                  others * 80 + 10 * of_others, "all_gather of long pieces of unknown lengths");
  require_traffic(added(communicator, Verb::kAllGather,
                        [&] { check_gather_of_known(communicator, [](std::size_t r) { return 10 * r; }); }),
                  others * 10 * own, 10 * of_others, "all_gather of known lengths");
  require_traffic(
      added(
          communicator, Verb::kAllToAll,
          [&] { check_all_to_all(communicator, [](std::size_t a, std::size_t b) { return 100 * a + b; }); }),
      others * 100 * own + of_others, others * own + 100 * of_others, "all_to_all");
}

void wrong_numbers_of_pieces_are_refused_before_anything_is_sent(Communicator& communicator) {
  const auto refuses = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const UserError&) {
      return true;
    }
    return false;
  };
  const std::vector<Sent> send(communicator.ranks() + 1);
  const std::vector<Received> receive(communicator.ranks() + 1);
  require(refuses([&] { communicator.all_to_all(send, receive); }), "one piece too many was taken");
  require(refuses([&] { communicator.all_gather({}, receive); }), "one piece too many was taken");
}

}  // namespace

const std::vector<Check>& communicator_checks() {
  static const std::vector<Check> checks = {
      {"RanksAreNumbered", ranks_are_numbered},
      {"SumsHaveTheBitsOfTheDullSum", sums_have_the_bits_of_the_dull_sum},
      {"GatheredPiecesMayHaveAnyLength", gathered_pieces_may_have_any_length},
      {"GatheredPiecesArriveWhereTheyAreWanted", gathered_pieces_arrive_where_they_are_wanted},
      {"PiecesForEachRankMayHaveAnyLength", pieces_for_each_rank_may_have_any_length},
      {"MegabytesArriveWhole", megabytes_arrive_whole},
      {"HundredsOfSmallVerbsFollowEachOther", hundreds_of_small_verbs_follow_each_other},
      {"ADuplicateDoesNotMeetTheOriginal", a_duplicate_does_not_meet_the_original},
      {"ADuplicateMayBeMadeAgainAndGo", a_duplicate_may_be_made_again_and_go},
      {"TrafficIsCountedAsDocumented", traffic_is_counted_as_documented},
      {"WrongNumbersOfPiecesAreRefusedBeforeAnythingIsSent",
       wrong_numbers_of_pieces_are_refused_before_anything_is_sent},
  };
  return checks;
}

void check_communicator(Communicator& communicator) {
  for (const Check& check : communicator_checks()) {
    try {
      check.run(communicator);
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("rank {} of {}: {}: {}", communicator.rank(), communicator.ranks(),
                                           check.name, error.what()));
    }
  }
}

}  // namespace cdgrab::suite
