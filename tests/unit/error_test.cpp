// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/error.hpp"

#include <gtest/gtest.h>

#include <type_traits>

namespace cdgrab {
namespace {

TEST(Error, MessageOpensWithWhereInBrackets) {
  EXPECT_STREQ(UserError("place", "what is wrong").what(), "[place] what is wrong");
}

TEST(Error, StateMismatchIsAFileError) {
  EXPECT_THROW(throw StateMismatch("a", "b"), FileError);
  EXPECT_FALSE((std::is_base_of_v<UserError, FileError>));
}

}  // namespace
}  // namespace cdgrab
