// SPDX-License-Identifier: Apache-2.0
#include "data/labelled_rows.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "data/files.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::write_text;

template <class T>
std::string npy(const std::string& descr, const std::string& shape, const std::vector<T>& values) {
  const std::string dict = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += {static_cast<char>(dict.size() + 1), '\0'};
  bytes += dict + "\n";
  return bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

class NpyPair : public testing::Test {
 protected:
  void write(const std::string& x, const std::string& y, const std::string& ending = "") const {
    write_text(folder_ / ("x" + ending + ".npy"), x);
    write_text(folder_ / ("y" + ending + ".npy"), y);
  }
  void expect_refused(const fs::path& path, const std::string& part) const {
    test::expect_refused(path, part, [&] { return read_npy_folder(folder_.path()); });
  }

  std::string two_rows_ = npy<float>("<f4", "(2, 3)", {1, 2, 3, 4, 5, 6});
  std::string two_labels_ = npy<std::int64_t>("<i8", "(2,)", {7, -7});
  TempFolder folder_;
  fs::path x_ = folder_ / "x.npy";
  fs::path y_ = folder_ / "y.npy";
};

TEST_F(NpyPair, RowsAndLabelsAreRead) {
  write(two_rows_, two_labels_);
  const LabelledRows rows = read_npy_folder(folder_.path());
  EXPECT_EQ(rows.dim, 3U);
  EXPECT_EQ(rows.values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(rows.label, (std::vector<std::int32_t>{1, 0}));
  EXPECT_EQ(rows.label_names, (std::vector<std::int64_t>{-7, 7}));
  EXPECT_FALSE(read_npy_test(folder_.path(), rows));
}

TEST_F(NpyPair, Float64AndEveryIntegerAreRead) {
  const std::string x = npy<double>("<f8", "(2, 1)", {0.1, -0.5});
  const auto expect_labels = [&](const std::string& y) {
    write(x, y);
    const LabelledRows rows = read_npy_folder(folder_.path());
    EXPECT_EQ(rows.values, (std::vector<float>{0.1F, -0.5F}));
    EXPECT_EQ(rows.label_names, (std::vector<std::int64_t>{0, 1}));
  };
  expect_labels(npy<std::int8_t>("|i1", "(2,)", {0, 1}));
  expect_labels(npy<std::uint8_t>("|u1", "(2,)", {0, 1}));
  expect_labels(npy<std::int16_t>("<i2", "(2,)", {0, 1}));
  expect_labels(npy<std::uint16_t>("<u2", "(2,)", {0, 1}));
  expect_labels(npy<std::int32_t>("<i4", "(2,)", {0, 1}));
  expect_labels(npy<std::uint32_t>("<u4", "(2,)", {0, 1}));
  expect_labels(npy<std::uint64_t>("<u8", "(2,)", {0, 1}));
}

TEST_F(NpyPair, TestRowsBelongToTheirTrainingRows) {
  write(two_rows_, two_labels_);
  const LabelledRows rows = read_npy_folder(folder_.path());
  const auto expect_test_refused = [&](const fs::path& path, const std::string& part) {
    test::expect_refused(path, part, [&] { return read_npy_test(folder_.path(), rows); });
  };
  write_text(folder_ / "x_test.npy", npy<float>("<f4", "(1, 3)", {7, 8, 9}));
  expect_test_refused(folder_.path(), "has no \"y_test.npy\"");
  write_text(folder_ / "y_test.npy", npy<std::int64_t>("<i8", "(1,)", {7}));
  const std::optional<LabelledRows> test = read_npy_test(folder_.path(), rows);
  ASSERT_TRUE(test);
  EXPECT_EQ(test->label, (std::vector<std::int32_t>{1}));
  write_text(folder_ / "y_test.npy", npy<std::int64_t>("<i8", "(1,)", {6}));
  expect_test_refused(folder_ / "y_test.npy",
                      "entry 0 is 6; allowed are the 2 labels of the training rows, -7..7");
  write_text(folder_ / "x_test.npy", npy<float>("<f4", "(1, 2)", {7, 8}));
  expect_test_refused(folder_ / "x_test.npy", "rows of 2 numbers; allowed are 3");
}

TEST_F(NpyPair, MissingFilesAreNamed) {
  expect_refused(folder_.path(), "has no \"x.npy\"; a folder is allowed that has \"x.npy\" and \"y.npy\"");
  write_text(x_, two_rows_);
  expect_refused(folder_.path(), "has no \"y.npy\"");
  fs::create_directory(y_);
  expect_refused(y_, "directory");
}

TEST_F(NpyPair, WhatDoesNotFitTogetherIsRefused) {
  write(two_rows_, npy<std::int64_t>("<i8", "(3,)", {1, 2, 3}));
  expect_refused(y_, "3 labels, and 2 rows in");
  write(two_rows_, npy<float>("<f4", "(2,)", {0, 1}));
  expect_refused(y_, "dtype '<f4'; allowed are int64, int32");
  write(two_rows_, npy<std::int64_t>("<i8", "(2, 1)", {0, 1}));
  expect_refused(y_, "the array has 2 dimensions");
  write(two_rows_, npy<std::uint64_t>("<u8", "(2,)", {0, std::uint64_t{1} << 63U}));
  expect_refused(y_, "entry 1 is 9223372036854775808; a number up to 2^63 - 1 is allowed");
  write(npy<float>("<f4", "(6,)", {1, 2, 3, 4, 5, 6}), two_labels_);
  expect_refused(x_, "the array has 1 dimensions");
  write("not npy", two_labels_);
  expect_refused(x_, "not a .npy file");
  write("", two_labels_);
  expect_refused(x_, "not a .npy file");
}

TEST_F(NpyPair, EmptyArraysAreRefused) {
  write(npy<float>("<f4", "(0, 3)", {}), npy<std::int64_t>("<i8", "(0,)", {}));
  expect_refused(x_, "shape (0, 3); at least one row of one number is allowed");
  write(npy<float>("<f4", "(2, 0)", {}), two_labels_);
  expect_refused(x_, "shape (2, 0)");
}

TEST_F(NpyPair, NumbersThatAreNotFiniteFloatsAreRefusedWithTheirPlace) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    write(npy<float>("<f4", "(2, 3)", {1, 2, 3, 4, bad, 6}), two_labels_);
    expect_refused(x_, "in row 1, column 1 (from 0); allowed are finite numbers");
  }
  write(npy<double>("<f8", "(2, 1)", {1, -1e39}), two_labels_);
  expect_refused(x_, "-1e+39 in row 1, column 0");
}

TEST_F(NpyPair, MoreThanAThousandLabelsAreRefused) {
  std::vector<std::int64_t> labels(1001);
  for (std::size_t k = 0; k < labels.size(); ++k) labels[k] = static_cast<std::int64_t>(k);
  write(npy<float>("<f4", "(1001, 1)", std::vector<float>(1001)), npy("<i8", "(1001,)", labels));
  expect_refused(y_, "1001 different labels; at most 1000 are allowed");
}

}  // namespace
}  // namespace cdgrab::data
