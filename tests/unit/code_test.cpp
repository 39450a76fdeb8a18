// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/code.hpp"

#include <gtest/gtest.h>

namespace cdgrab {
namespace {

TEST(Code, LeavesAndMiddlesAlternateInOrder) {
  // Two levels: ++ (root +) +- (root) -+ (root -) --
  EXPECT_EQ(leaf_code(0b00), 0);
  EXPECT_EQ(middle_code(0, 1, 2), 1);
  EXPECT_EQ(leaf_code(0b01), 2);
  EXPECT_EQ(middle_code(0, 0, 2), 3);
  EXPECT_EQ(leaf_code(0b10), 4);
  EXPECT_EQ(middle_code(1, 1, 2), 5);
  EXPECT_EQ(leaf_code(0b11), 6);
}

TEST(Code, TheDeepestTreeStaysClearOfTheReservedCodes) {
  EXPECT_LT(leaf_code((1U << kMaxLevels) - 1), kNotFinite);
}

TEST(Fold, PlusForwardThenUnseenThenMinusBackward) {
  const std::vector<Index> order = {10, 11, 12, 13, 14, 15, 16};
  const Code plus = leaf_code(0);
  const Code minus = leaf_code(1);
  const std::vector<Code> codes = {plus, minus, kUnobserved, minus, middle_code(0, 0, 1), plus, kNotFinite};
  EXPECT_EQ(fold(order, codes, 1), (std::vector<Index>{10, 15, 12, 14, 16, 13, 11}));
}

TEST(Fold, OddBucketsAreReadBackwards) {
  const std::vector<Index> order = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<Code> codes;
  for (const std::uint32_t bits : {3U, 2U, 1U, 0U, 0U, 1U, 2U, 3U}) codes.push_back(leaf_code(bits));
  EXPECT_EQ(fold(order, codes, 2), (std::vector<Index>{3, 4, 5, 2, 1, 6, 7, 0}));
}

TEST(Fold, WhatIsUnpairedAtANodeStandsBetweenItsChildren) {
  const std::vector<Index> order = {0, 1, 2, 3};
  const std::vector<Code> codes = {leaf_code(1), middle_code(0, 1, 2), leaf_code(0), kUnobserved};
  EXPECT_EQ(fold(order, codes, 2), (std::vector<Index>{2, 1, 0, 3}));
}

TEST(Fold, OfNothingIsNothing) { EXPECT_TRUE(fold({}, {}, 1).empty()); }

}  // namespace
}  // namespace cdgrab
