// SPDX-License-Identifier: Apache-2.0
#include "data/text.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "data/files.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::TempFolder;
using test::write_gz;
using test::write_text;
using Tokens = std::vector<std::int32_t>;

class PlainText : public testing::Test {
 protected:
  Text read(const std::string& content, const TextOptions& options = {}) const {
    write_text(path_, content);
    return data::read_text({path_, {}}, options);
  }
  void expect_refused(const std::string& content, const std::string& part) const {
    write_text(path_, content);
    test::expect_refused(path_, part, [&] { return data::read_text({path_, {}}); });
  }

  TempFolder folder_;
  fs::path path_ = folder_ / "a.txt";
};

TEST_F(PlainText, WordsAreNumberedByFrequencyThenByAppearance) {
  const Text text = read("d c b\nb a c\n\nc\n");
  EXPECT_EQ(text.words, (std::vector<std::string>{"<unk>", "<eos>", "c", "b", "d", "a"}));
  EXPECT_EQ(text.train, (Tokens{4, 2, 3, 1, 3, 5, 2, 1, 1, 2, 1}));
  EXPECT_TRUE(text.validation.empty());
}

TEST_F(PlainText, RareWordsAreUnknown) {
  const Text text = read("a b a c b a <unk> <eos>\n", {.max_words = 4});
  EXPECT_EQ(text.words, (std::vector<std::string>{"<unk>", "<eos>", "a", "b"}));
  EXPECT_EQ(text.train, (Tokens{2, 3, 2, 0, 3, 2, 0, 1, 1}));
  EXPECT_EQ(read("a b\n", {.max_words = 2}).train, (Tokens{0, 0, 1}));
}

TEST_F(PlainText, LineEndsAndSpacesDoNotMatter) {
  const Text plain = read("a b\nc\n");
  const Text odd = read("\xEF\xBB\xBF  a\tb \r\nc");
  EXPECT_EQ(odd.words, plain.words);
  EXPECT_EQ(odd.train, plain.train);
}

TEST_F(PlainText, ValidationWordsThatTrainingHasNotAreUnknown) {
  write_text(path_, "a b a\n");
  write_gz(folder_ / "v.gz", "b z a\n");
  const Text text = data::read_text({path_, folder_ / "v.gz"});
  EXPECT_EQ(text.words.size(), 4U);
  EXPECT_EQ(text.validation, (Tokens{3, 0, 2, 1}));
}

TEST_F(PlainText, TheEndIsHeldOutAndUnseenByTheVocabulary) {
  const Text text = read("a b c a b c a\nz z\n", {.held_out = 0.3});
  EXPECT_EQ(text.words, (std::vector<std::string>{"<unk>", "<eos>", "a", "b", "c"}));
  EXPECT_EQ(text.train.size(), 8U);
  EXPECT_EQ(text.validation, (Tokens{0, 0, 1}));
}

TEST_F(PlainText, WhatIsNotUtf8IsRefusedWithTheOffset) {
  EXPECT_EQ(read("na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80\n").train.size(), 4U);
  expect_refused("ab\nna\xEFve\n", "line 2: byte 0xef at offset 5 is not UTF-8");
  expect_refused(
      "\xEF\xBB\xBF"
      "a\xFF\n",
      "byte 0xff at offset 4");
  for (const char* bad :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\x80", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xE2\x82\x41"}) {
    expect_refused(std::string("a") + bad + "\n", "at offset 1 is not UTF-8");
  }
}

TEST_F(PlainText, TextsWithoutWordsOrLinesAreRefused) {
  expect_refused("", "not a single word in it");
  expect_refused(" \n\t\n", "not a single word in it");
  expect_refused(std::string((std::size_t{1} << 24U) + 1, 'a'), "line 1: longer than 16777216 bytes");
}

TEST_F(PlainText, OptionsOutOfRangeAreRefused) {
  const auto message = [&](const TextOptions& options) {
    return message_of<UserError>([&] { static_cast<void>(read("a\n", options)); });
  };
  EXPECT_NE(message({.max_words = 1}).find("max_words is 1; allowed is 2 or more"), std::string::npos);
  for (const double share : {-0.1, 1.0, std::nan("")}) {
    EXPECT_NE(message({.held_out = share}).find("held_out is"), std::string::npos);
  }
}

class TextFolder : public testing::Test {
 protected:
  fs::path put(const std::string& name) const {
    write_text(folder_ / name, "a\n");
    return folder_ / name;
  }
  TempFolder folder_;
};

TEST_F(TextFolder, ValidationStandsInForTrainingOnlyWithoutIt) {
  test::expect_refused(folder_.path(), "has neither \"train.txt\" nor \"valid.txt\"",
                       [&] { return find_text(folder_.path()); });
  const fs::path test = put("test.txt.gz");
  test::expect_refused(folder_.path(), "has neither", [&] { return find_text(folder_.path()); });
  const fs::path valid = put("valid.txt");
  EXPECT_EQ(find_text(folder_.path()).train, valid);
  EXPECT_EQ(find_text(folder_.path()).validation, test);
  const fs::path train = put("train.txt");
  EXPECT_EQ(find_text(folder_.path()).train, train);
  EXPECT_EQ(find_text(folder_.path()).validation, valid);
  fs::remove(valid);
  EXPECT_EQ(find_text(folder_.path()).validation, test);
  fs::remove(test);
  EXPECT_EQ(find_text(folder_.path()).validation, "");
  EXPECT_EQ(find_text(train).train, train);
}

// The counts that every use of WikiText-2 has with <eos> at the end of lines.
TEST(RealText, WikiText2HasTheKnownSizes) {
  const fs::path folder = test::real_data("wikitext-2");
  if (folder.empty()) GTEST_SKIP() << "CDGRAB_DATA is not set: WikiText-2 was NOT read";
  const TextFiles files = find_text(folder);
  EXPECT_EQ(files.train.filename(), "valid.txt.gz");
  EXPECT_EQ(files.validation.filename(), "test.txt.gz");
  const Text text = data::read_text(files);
  EXPECT_EQ(text.train.size(), 217646U);
  EXPECT_EQ(text.validation.size(), 245569U);
  EXPECT_EQ(text.words[2], "the");
}

}  // namespace
}  // namespace cdgrab::data
