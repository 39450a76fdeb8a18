// SPDX-License-Identifier: Apache-2.0
#include "workers/message.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "cdgrab/error.hpp"
#include "property/cases.hpp"

namespace cdgrab {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMostInAList = 1000;

/// Small and large, with runs of equal ones and of successive ones.
template <class T>
std::vector<T> random_list(cases::Dice& dice) {
  std::vector<T> list;
  std::uint64_t value = dice.flip() ? dice.roll(10) : kMost - dice.roll(10);
  for (std::size_t runs = dice.roll(5); runs > 0; --runs) {
    const std::uint64_t step = dice.roll(3) - 1;
    for (std::size_t k = dice.roll(20); k > 0; --k) list.push_back(static_cast<T>(value += step));
    value += dice.flip() ? dice.roll(1000) : kMost - dice.roll(1000);
  }
  return list;
}

Message random_message(std::uint64_t seed) {
  cases::Dice dice(seed);
  Message message;
  message.call = static_cast<Call>(dice.roll(4));
  message.left = static_cast<std::uint8_t>(dice.roll(2));
  message.type = static_cast<std::uint8_t>(dice.roll(256));
  message.epoch = dice.roll(300);
  message.step = kMost - dice.roll(2);
  message.made = dice.roll(kMost);
  message.orders = kMost;
  message.dim = 127 + dice.roll(2);
  message.hold_limit = std::uint64_t{1} << dice.roll(64);
  message.sizes = random_list<std::uint64_t>(dice);
  for (std::size_t k = dice.roll(3); k > 0; --k) {
    Arrivals arrivals{static_cast<std::uint32_t>(dice.roll(65536)), random_list<Index>(dice),
                      random_list<Code>(dice)};
    arrivals.codes.resize(arrivals.positions.size());
    message.arrivals.push_back(arrivals);
  }
  for (std::size_t k = dice.roll(3); k > 0; --k)
    message.gradients.push_back(
        {1, static_cast<Index>(dice.roll(1000)), 3, 1, 0.1 * static_cast<double>(k), -0.0});
  return message;
}

void expect_equal(const Message& a, const Message& b) {
  EXPECT_EQ(encode_message(a), encode_message(b));
  EXPECT_EQ(a.call, b.call);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.made, b.made);
  EXPECT_EQ(a.dim, b.dim);
  EXPECT_EQ(a.hold_limit, b.hold_limit);
  EXPECT_EQ(a.sizes, b.sizes);
  ASSERT_EQ(a.arrivals.size(), b.arrivals.size());
  for (std::size_t k = 0; k < a.arrivals.size(); ++k) {
    EXPECT_EQ(a.arrivals[k].worker, b.arrivals[k].worker);
    EXPECT_EQ(a.arrivals[k].positions, b.arrivals[k].positions);
    EXPECT_EQ(a.arrivals[k].codes, b.arrivals[k].codes);
  }
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (std::size_t k = 0; k < a.gradients.size(); ++k)
    EXPECT_EQ(a.gradients[k].weight, b.gradients[k].weight);
}

TEST(Message, ComesBackAsItWas) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Message message = random_message(seed);
    expect_equal(decode_message(encode_message(message), kMostInAList), message);
  }
}

TEST(Message, OfAnOrdinaryStepFitsIntoWhatIsGatheredAtOnce) {
  Message message;
  message.type = 1;
  message.epoch = 20;
  message.step = 1000;
  message.made = message.orders = kMost;
  message.dim = 1'000'000;
  message.hold_limit = std::uint64_t{4} << 30;
  message.sizes.assign(64, 1'000'000);
  std::fill_n(message.sizes.begin(), 10, 1'000'032);  // slices differ by one number
  Arrivals arrivals{63, {}, {}};
  for (Index k = 0; k < 16; ++k) {
    arrivals.positions.push_back(100'000 + k);
    arrivals.codes.push_back(7);
  }
  message.arrivals.push_back(arrivals);
  EXPECT_LE(encode_message(message).size(), 72U);
}

TEST(Message, ThatIsCutOffOrTooLongIsRefused) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Bytes bytes = encode_message(random_message(seed));
    for (std::size_t length = 0; length < bytes.size(); ++length)
      EXPECT_THROW(decode_message(std::span(bytes).first(length), kMostInAList), CommunicationError);
    Bytes longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_THROW(decode_message(longer, kMostInAList), CommunicationError);
  }
}

TEST(Message, ThatNoRankWouldSayIsRefused) {
  const auto refused = [](auto change) {
    Message message;
    change(message);
    EXPECT_THROW(decode_message(encode_message(message), 5), CommunicationError);
  };
  refused([](Message& m) { m.call = static_cast<Call>(4); });
  refused([](Message& m) { m.sizes.assign(6, 0); });
  refused([](Message& m) { m.arrivals.push_back({0, {1, 2}, {7}}); });
}

TEST(Message, OfAFewBytesTakesNoMoreMemoryThanALongestListMayHave) {
  Message message;
  message.sizes.assign(1'000'000, 3);
  const Bytes bytes = encode_message(message);
  EXPECT_LT(bytes.size(), 50U);
  EXPECT_EQ(decode_message(bytes, 1'000'000).sizes.size(), 1'000'000U);
  EXPECT_THROW(decode_message(bytes, 999'999), CommunicationError);
}

}  // namespace
}  // namespace cdgrab
