// SPDX-License-Identifier: Apache-2.0
#include "data/m4.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "data/files.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::write_gz;
using test::write_text;

class M4 : public testing::Test {
 protected:
  std::vector<Series> read(const std::string& content) const {
    write_text(path_, content);
    return read_m4(path_);
  }
  void expect_refused(const std::string& content, const std::string& part) const {
    write_text(path_, content);
    test::expect_refused(path_, part, [&] { return read_m4(path_); });
  }

  TempFolder folder_;
  fs::path path_ = folder_ / "Weekly.csv";
};

TEST_F(M4, SeriesOfDifferentLengthsAreRead) {
  const auto all = read(
      "\"V1\",\"V2\",\"V3\",\"V4\"\n\"W1\",\"1.5\",\"-2\",\"\"\n\"W2\",\"3\",\"4\",\"5e3\"\n\"W3\",\"6\"\n");
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].name, "W1");
  EXPECT_EQ(all[0].values, (std::vector<float>{1.5F, -2.0F}));
  EXPECT_EQ(all[1].values, (std::vector<float>{3.0F, 4.0F, 5000.0F}));
  EXPECT_EQ(all[2].values, (std::vector<float>{6.0F}));
}

TEST_F(M4, LineEndsQuotesSpacesAndEmptyLinesDoNotMatter) {
  const auto all = read("\xEF\xBB\xBFV1,V2,V3\r\nW1, 1 ,\r\n\r\n\"W2\",2, \"3\"  ");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].values, (std::vector<float>{1.0F}));
  EXPECT_EQ(all[1].name, "W2");
  EXPECT_EQ(all[1].values, (std::vector<float>{2.0F, 3.0F}));
}

TEST_F(M4, ACommaInsideQuotesIsPartOfTheField) { EXPECT_EQ(read("V1,V2\n\"a,b\",1\n").front().name, "a,b"); }

TEST_F(M4, OtherFilesAreRefused) {
  expect_refused("", "empty; a csv file of M4 has a header");
  expect_refused("\n", "line 1: column 1: the header begins with \"\"");
  expect_refused("id,value\n1,2\n", "line 1: column 1: the header begins with \"id\"; allowed is \"V1\"");
  expect_refused("V1,V2\n\n", "no series after the header");
}

TEST_F(M4, BadFieldsAreRefusedWithLineAndColumn) {
  expect_refused("V1,V2,V3,V4\nW1,1,,3\n", "line 2: column 4: value \"3\" after the empty column 3");
  expect_refused("V1,V2\nW1,1\nW2,x\n", "line 3: column 2: \"x\" is not a number");
  expect_refused("V1,V2\nW1,NA\n", "column 2: \"NA\" is not a number");
  expect_refused("V1,V2\nW1,nan\n", "column 2: \"nan\" is not finite");
  expect_refused("V1,V2\nW1,1e39\n", "column 2: \"1e39\" is too large for a float32");
  expect_refused("V1,V2\nW1,\"1\n", "line 2: column 2: \"\\\"1\": a quote that does not end with the field");
  expect_refused("V1,V2\n\"W\"1,1\n", "line 2: column 1: ");
  expect_refused("V1,V2\nW1,1, \"2\n", "line 2: column 3: ");
}

TEST_F(M4, BadSeriesAreRefused) {
  expect_refused("V1,V2\nW1,1,2\n",
                 "line 2: column 3: the line is longer than the header, which has 2 columns");
  expect_refused("V1,V2\n,1\n", "line 2: column 1: no name");
  expect_refused("V1,V2\nW1,\n", "line 2: series \"W1\" has no value");
  expect_refused("V1,V2\nW1,1\nW1,2\n", "line 3: column 1: a second series \"W1\"");
  expect_refused("V1,V2\nW1," + std::string(std::size_t{1} << 24U, '1'),
                 "line 2: longer than 16777216 bytes");
}

class M4Folder : public testing::Test {
 protected:
  void expect_refused(const fs::path& path, const std::string& part) const {
    test::expect_refused(path, part, [&] { return read_m4_folder(folder_.path()); });
  }

  TempFolder folder_;
  fs::path train_ = folder_ / "Weekly-train.csv";
  fs::path test_ = folder_ / "Weekly-test.csv.gz";
};

TEST_F(M4Folder, TrainAndTestAreMatchedByName) {
  write_text(train_, "V1,V2\nW1,1\nW2,2\n");
  write_gz(test_, "V1,V2\nW2,20\nW1,10\n");
  write_text(folder_ / "Weekly-train.csv.gz", "not looked at, there is a plain one");
  const SeriesSplits splits = read_m4_folder(folder_.path());
  ASSERT_EQ(splits.test.size(), 2U);
  EXPECT_EQ(splits.test[0].name, "W1");
  EXPECT_EQ(splits.test[0].values, (std::vector<float>{10.0F}));
  EXPECT_EQ(splits.test[1].name, "W2");
}

TEST_F(M4Folder, MissingAndSeveralFilesAreRefused) {
  expect_refused(folder_.path(), "0 files named *-train.csv or *-train.csv.gz; exactly one is allowed");
  write_text(train_, "V1,V2\nW1,1\n");
  expect_refused(folder_.path(), "0 files named *-test.csv or *-test.csv.gz");
  write_text(folder_ / "Hourly-train.csv.gz", "");
  expect_refused(folder_.path(),
                 "2 files named *-train.csv or *-train.csv.gz: Hourly-train.csv.gz, Weekly-train.csv;");
  test::expect_refused(folder_ / "none", "cannot be listed: No such file or directory (error 2)",
                       [&] { return read_m4_folder(folder_ / "none"); });
}

TEST_F(M4Folder, DifferentSeriesAreRefused) {
  write_text(train_, "V1,V2\nW1,1\nW2,2\n");
  write_gz(test_, "V1,V2\nW1,10\n");
  expect_refused(test_, "no series \"W2\"");
  write_gz(test_, "V1,V2\nW1,10\nW3,1\nW2,20\n");
  expect_refused(test_, "series \"W3\", which the training file does not have");
}

TEST(RealM4, WeeklyHasTheKnownSizes) {
  const fs::path folder = test::real_data("m4-weekly");
  if (folder.empty()) GTEST_SKIP() << "CDGRAB_DATA is not set: the files of M4 were NOT read";
  const SeriesSplits splits = read_m4_folder(folder);
  ASSERT_EQ(splits.train.size(), 359U);
  EXPECT_TRUE(std::ranges::all_of(splits.test, [](const Series& s) { return s.values.size() == 13; }));
  const auto [shortest, longest] =
      std::ranges::minmax(splits.train, {}, [](const Series& s) { return s.values.size(); });
  EXPECT_EQ(shortest.values.size(), 80U);
  EXPECT_EQ(longest.values.size(), 2597U);
  EXPECT_EQ(splits.test.front().values.front(), 35397.16F);
}

}  // namespace
}  // namespace cdgrab::data
