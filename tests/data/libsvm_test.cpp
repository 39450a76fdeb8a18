// SPDX-License-Identifier: Apache-2.0
#include "data/libsvm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data/files.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::write_text;

class Libsvm : public testing::Test {
 protected:
  SparseExamples read(const std::string& content) const {
    write_text(path_, content);
    return read_libsvm(path_);
  }
  void expect_refused(const std::string& content, const std::string& part) const {
    write_text(path_, content);
    test::expect_refused(path_, part, [&] { return read_libsvm(path_); });
  }
  void expect_refused_like(const SparseExamples& like, const std::string& content,
                           const std::string& part) const {
    write_text(path_, content);
    test::expect_refused(path_, part, [&] { return read_libsvm(path_, like); });
  }

  TempFolder folder_;
  fs::path path_ = folder_ / "a.libsvm";
};

TEST_F(Libsvm, LabelsAndEntriesAreRead) {
  const SparseExamples all = read("+1 1:0.5 4:-2e-1\n-1\n+1 2:+3 3:.25\n");
  EXPECT_EQ(all.dim, 4U);
  EXPECT_EQ(all.begin, (std::vector<std::size_t>{0, 2, 2, 4}));
  EXPECT_EQ(all.column, (std::vector<std::uint32_t>{0, 3, 1, 2}));
  EXPECT_EQ(all.value, (std::vector<float>{0.5F, -0.2F, 3.0F, 0.25F}));
  EXPECT_EQ(all.label, (std::vector<std::int32_t>{1, 0, 1}));
  EXPECT_EQ(all.label_names, (std::vector<std::int64_t>{-1, 1}));
}

TEST_F(Libsvm, LabelsAreNumberedByValueNotByAppearance) {
  const SparseExamples all = read("7 1:1\n-3 1:1\n2.0 1:1\n7 1:1\n");
  EXPECT_EQ(all.label_names, (std::vector<std::int64_t>{-3, 2, 7}));
  EXPECT_EQ(all.label, (std::vector<std::int32_t>{2, 0, 1, 2}));
}

TEST_F(Libsvm, LineEndsSpacesCommentsAndEmptyLinesDoNotMatter) {
  const SparseExamples plain = read("1 1:1 2:2\n2 1:3\n");
  const SparseExamples odd = read("\xEF\xBB\xBF# a comment\r\n  1\t1:1   2:2 \t\r\n\r\n2 1:3 # the last 9:9");
  EXPECT_EQ(odd.begin, plain.begin);
  EXPECT_EQ(odd.column, plain.column);
  EXPECT_EQ(odd.value, plain.value);
  EXPECT_EQ(odd.label, plain.label);
}

TEST_F(Libsvm, LinesLongerThanTheFirstBufferAreReadWhole) {
  std::string line = "1";
  for (int k = 1; k <= 50'000; ++k) line += " " + std::to_string(k) + ":1";
  const SparseExamples all = read("2 1:5\n" + line + "\n" + line);
  EXPECT_EQ(all.dim, 50'000U);
  EXPECT_EQ(all.begin, (std::vector<std::size_t>{0, 1, 50'001, 100'001}));
}

TEST_F(Libsvm, ALineWithoutEndIsRefused) {
  expect_refused("1 1:1\n1 " + std::string(std::size_t{1} << 24U, ' '), "line 2: longer than 16777216 bytes");
}

TEST_F(Libsvm, FilesWithoutExamplesAreRefused) {
  expect_refused("", "no example in it");
  expect_refused("# nothing\n\n", "no example in it");
  expect_refused("1\n2\n", "no example of it has an entry index:value");
}

TEST_F(Libsvm, BadLabelsAreRefusedWithTheirLine) {
  expect_refused("1 1:1\n1:2 3:4\n", "line 2: \"1:2\" where the label belongs");
  expect_refused("1,2 1:1\n", "line 1: \"1,2\" where the label belongs");
  expect_refused("yes 1:1\n", "\"yes\" where the label belongs");
  expect_refused("+-1 1:1\n", "\"+-1\" where the label belongs");
  expect_refused("1 1:1\n0.5 1:1\n",
                 "line 2: label \"0.5\" is not a whole number, as in files for regression");
  expect_refused("nan 1:1\n", "label \"nan\" is not a whole number");
  expect_refused("inf 1:1\n", "label \"inf\" is not a whole number");
  expect_refused("1e300 1:1\n", "label \"1e300\" is not a whole number");
}

TEST_F(Libsvm, MoreThanAThousandLabelsAreTakenForRegression) {
  std::string content;
  for (int k = 0; k < 1000; ++k) content += std::to_string(k) + " 1:1\n";
  EXPECT_EQ(read(content).label_names.size(), 1000U);
  expect_refused(content + "1000 1:1\n", "1001 different labels, as in files for regression; at most 1000");
}

TEST_F(Libsvm, BadEntriesAreRefusedWithTheirLine) {
  expect_refused("1 1:1\n1 2\n", "line 2: \"2\": no entry index:value");
  expect_refused("1 a:1\n", "\"a:1\": the index is not a whole number");
  expect_refused("1 :1\n", "\":1\": the index is not a whole number");
  expect_refused("1 -1:1\n", "\"-1:1\": the index is not a whole number");
  expect_refused("1 1:\n", "\"1:\": the value is not a number");
  expect_refused("1 1:x\n", "\"1:x\": the value is not a number");
  expect_refused("1 1:2:3\n", "\"1:2:3\": the value is not a number");
  expect_refused("1 1:nan\n", "\"1:nan\": the value is not finite");
  expect_refused("1 1:-inf\n", "\"1:-inf\": the value is not finite");
  expect_refused("1 1:1e39\n", "\"1:1e39\": the value is too large for a float32");
  expect_refused("1 qid:3 1:1\n", "line 1: \"qid:3\" is of files for ranking");
  expect_refused(std::string("1 1:1\0\n", 7), "the value is not a number");
}

TEST_F(Libsvm, IndicesAreHeldToTheirRange) {
  expect_refused("1 0:1\n", "index 0; allowed are 1..100000000: count from 1, add 1 to every index");
  expect_refused("1 100000001:1\n", "index 100000001; allowed are 1..100000000: number the features");
  expect_refused("1 99999999999999999999999:1\n",
                 "index 99999999999999999999999; allowed are 1..100000000: number the features");
  expect_refused("1 3:1 3:1\n", "line 1: index 3 after index 3; indices are allowed to ascend only");
  expect_refused("1 3:1 2:1\n", "line 1: index 2 after index 3");
}

TEST_F(Libsvm, ATestFileTakesDimAndLabelsFromItsTrainingFile) {
  const SparseExamples train = read("1 5:1\n3 1:1\n2 1:1\n");
  write_text(path_, "3 2:1\n");
  const SparseExamples test = read_libsvm(path_, train);
  EXPECT_EQ(test.dim, 5U);
  EXPECT_EQ(test.label, (std::vector<std::int32_t>{2}));
  EXPECT_EQ(test.label_names, train.label_names);
  expect_refused_like(train, "1 1:1\n4 1:1\n",
                      "line 2: label 4; allowed are the labels of the training file, 1, 2, 3");
  expect_refused_like(train, "1 6:1\n", "line 1: index 6; allowed are 1..5, as in the training file");
}

TEST(RealLibsvm, A9aHasTheKnownSizesAndCounts) {
  const fs::path folder = test::real_data("a9a");
  if (folder.empty()) GTEST_SKIP() << "CDGRAB_DATA is not set: a9a was NOT read";
  const SparseExamples all = read_libsvm(folder / "a9a.gz");
  EXPECT_EQ(all.label.size(), 32561U);
  EXPECT_EQ(all.dim, 123U);
  EXPECT_EQ(all.label_names, (std::vector<std::int64_t>{-1, 1}));
  EXPECT_EQ(std::ranges::count(all.label, 1), 7841);
  EXPECT_EQ(all.column.size(), 451592U);
}

}  // namespace
}  // namespace cdgrab::data
