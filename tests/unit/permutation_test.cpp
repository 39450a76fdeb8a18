// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/permutation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "cdgrab/error.hpp"
#include "cdgrab/random.hpp"
#include "temp_folder.hpp"

namespace cdgrab {
namespace {

using Order = std::vector<Index>;

TEST(Permutation, IdentityCountsUp) {
  EXPECT_EQ(identity_order(0), Order{});
  EXPECT_EQ(identity_order(3), (Order{0, 1, 2}));
}

TEST(Permutation, TooManyExamplesAreRefused) { EXPECT_THROW(identity_order(kMaxExamples + 1), UserError); }

TEST(Permutation, ExactlyTheBijectionsArePermutations) {
  EXPECT_TRUE(is_permutation(Order{}));
  EXPECT_TRUE(is_permutation(Order{0}));
  EXPECT_TRUE(is_permutation(Order{2, 0, 1}));
  EXPECT_FALSE(is_permutation(Order{1}));
  EXPECT_FALSE(is_permutation(Order{0, 0}));
  EXPECT_FALSE(is_permutation(Order{0, 4294967295U}));
}

TEST(Permutation, TheFirstOffendingEntryIsNamed) {
  EXPECT_NO_THROW(require_permutation(Order{1, 0}, 2, "here"));
  const auto message = [](const Order& order, std::size_t n) {
    return test::message_of<UserError>([&] { require_permutation(order, n, "here"); });
  };
  EXPECT_NE(message({0, 1}, 3).find("[here] the order has 2 entries, but 3"), std::string::npos);
  EXPECT_NE(message({0, 3, 9}, 3).find("entry 1 of the order, 3, is out of range"), std::string::npos);
  EXPECT_NE(message({0, 2, 0}, 3).find("entry 2 of the order, 0, appears for the second time"),
            std::string::npos);
}

TEST(Permutation, InverseUndoesTheOrder) {
  const Order order = random_permutation({5, Purpose::kOrder, 0, 0}, 101);
  const Order inverse = inverse_order(order);
  for (std::size_t t = 0; t < order.size(); ++t) EXPECT_EQ(inverse[order[t]], t);
  EXPECT_EQ(inverse_order(inverse), order);
}

TEST(Permutation, HashTellsOrdersApart) {
  std::set<std::uint64_t> hashes{order_hash(Order{}), order_hash(Order{0}), order_hash(Order{0, 0})};
  Order order = identity_order(6);
  do {
    hashes.insert(order_hash(order));
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(hashes.size(), 3U + 720U);
}

TEST(Permutation, HashIsTheSameOnEveryMachine) {
  EXPECT_EQ(order_hash(Order{}), 0xE220A8397B1DCDAFU);
  EXPECT_EQ(order_hash(Order{2, 0, 1}), 0xD8CD1AA07DC8C4BEU);
}

}  // namespace
}  // namespace cdgrab
