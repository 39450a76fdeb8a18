// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/npy.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cdgrab/error.hpp"
#include "temp_folder.hpp"

namespace cdgrab {
namespace {

using test::message_of;
using test::TempFolder;
using test::write_text;

std::string length_bytes(std::size_t length, int count) {
  std::string bytes;
  for (int k = 0; k < count; ++k) bytes.push_back(static_cast<char>((length >> (8 * k)) & 0xFF));
  return bytes;
}

std::string npy(const std::string& dict, const std::string& data, char version = 1) {
  const std::string header = dict + "\n";
  return std::string("\x93NUMPY") + version + '\0' + length_bytes(header.size(), version == 1 ? 2 : 4) +
         header + data;
}

std::string dict(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class Npy : public testing::Test {
 protected:
  [[nodiscard]] AnyMatrix matrix(const std::string& content) const {
    write_text(path_, content);
    return read_npy_matrix(path_);
  }
  [[nodiscard]] std::vector<Index> order(const std::string& content) const {
    write_text(path_, content);
    return read_npy_order(path_);
  }
  [[nodiscard]] std::vector<std::int64_t> integers(const std::string& content) const {
    write_text(path_, content);
    return read_npy_integers(path_);
  }
  // Every message names the file and holds `part`.
  void expect_refused(const std::string& content, const std::string& part) const {
    check(message_of<FileError>([&] { static_cast<void>(matrix(content)); }), part);
  }
  void expect_order_refused(const std::string& content, const std::string& part) const {
    check(message_of<FileError>([&] { static_cast<void>(order(content)); }), part);
  }
  void expect_integers_refused(const std::string& content, const std::string& part) const {
    check(message_of<FileError>([&] { static_cast<void>(integers(content)); }), part);
  }
  // The ends of T's range are read as they are.
  template <class T>
  void expect_integers(const std::string& descr) const {
    constexpr T kLeast = std::numeric_limits<T>::min();
    constexpr T kMost = sizeof(T) == 8 ? static_cast<T>(std::numeric_limits<std::int64_t>::max())
                                       : std::numeric_limits<T>::max();
    EXPECT_EQ(
        integers(npy(dict(descr, "(2,)"), bytes_of<T>({kLeast, kMost}))),
        (std::vector<std::int64_t>{static_cast<std::int64_t>(kLeast), static_cast<std::int64_t>(kMost)}));
  }

  TempFolder folder_;
  std::filesystem::path path_ = folder_ / "a.npy";

 private:
  void check(const std::string& message, const std::string& part) const {
    EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
};

TEST_F(Npy, Float32AndFloat64StayWhatTheyAre) {
  const auto floats =
      std::get<Matrix<float>>(matrix(npy(dict("<f4", "(2, 3)"), bytes_of<float>({1, 2, 3, 4, 5, 6}))));
  EXPECT_EQ(floats.rows, 2U);
  EXPECT_EQ(floats.dim, 3U);
  EXPECT_EQ(floats.values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  const auto doubles =
      std::get<Matrix<double>>(matrix(npy(dict("<f8", "(1, 2)"), bytes_of<double>({0.5, -1}))));
  EXPECT_EQ(doubles.values, (std::vector<double>{0.5, -1}));
}

TEST_F(Npy, AllThreeVersionsAreRead) {
  for (const char version : {'\1', '\2', '\3'}) {
    const AnyMatrix read = matrix(npy(dict("<f4", "(1, 1)"), bytes_of<float>({7}), version));
    EXPECT_EQ(std::get<Matrix<float>>(read).values, std::vector<float>{7});
  }
}

TEST_F(Npy, FortranOrderIsTransposed) {
  const auto small = std::get<Matrix<float>>(
      matrix(npy(dict("<f4", "(2, 3)", "True"), bytes_of<float>({1, 4, 2, 5, 3, 6}))));
  EXPECT_EQ(small.values, (std::vector<float>{1, 2, 3, 4, 5, 6}));

  constexpr std::size_t kRows = 5000;
  constexpr std::size_t kColumns = 35;
  std::vector<double> columns(kRows * kColumns);
  for (std::size_t k = 0; k < columns.size(); ++k) columns[k] = static_cast<double>(k);
  const auto large =
      std::get<Matrix<double>>(matrix(npy(dict("<f8", "(5000, 35)", "True"), bytes_of(columns))));
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t j = 0; j < kColumns; ++j) {
      ASSERT_EQ(large.values[i * kColumns + j], static_cast<double>(j * kRows + i));
    }
  }
}

TEST_F(Npy, EmptyArraysAreRead) {
  const auto no_rows = std::get<Matrix<float>>(matrix(npy(dict("<f4", "(0, 5)"), "")));
  EXPECT_EQ(no_rows.rows, 0U);
  EXPECT_EQ(no_rows.dim, 5U);
  const auto no_columns = std::get<Matrix<float>>(matrix(npy(dict("<f4", "(5, 0)", "True"), "")));
  EXPECT_EQ(no_columns.rows, 5U);
  EXPECT_TRUE(no_columns.values.empty());
}

TEST_F(Npy, SpellingsOfTheHeaderThatPythonAllowsAreRead) {
  const std::string data = bytes_of<float>({1, 2});
  for (const std::string header :
       {R"({"shape":(1,2),"descr":"<f4","fortran_order":False})",
        "{ 'fortran_order' : False , 'shape' : ( 1 , 2 , ) , 'descr' : '<f4' }   "}) {
    EXPECT_EQ(std::get<Matrix<float>>(matrix(npy(header, data))).values, (std::vector<float>{1, 2}))
        << header;
  }
}

TEST_F(Npy, WhatIsNotNpyIsRefused) {
  expect_refused("", "not a .npy file");
  expect_refused("\x93NUM", "not a .npy file");
  expect_refused("PK\x03\x04 a zip archive, as .npz is", "not a .npy file");
  expect_refused(npy(dict("<f4", "(1, 1)"), "abcd", 4), "version 4.0");
  expect_refused(std::string("\x93NUMPY\x01\x01", 8) + std::string(100, ' '), "version 1.1");
}

TEST_F(Npy, HeaderLengthsAreCheckedBeforeTheyAreBelieved) {
  expect_refused(std::string("\x93NUMPY\x01\x00", 8), "truncated");
  expect_refused(std::string("\x93NUMPY\x01\x00\x40\x00{", 11), "truncated");
  expect_refused(std::string("\x93NUMPY\x02\x00", 8) + length_bytes(0xFFFFFFFF, 4) + "{}",
                 "claims 4294967295 bytes");
  expect_refused(npy(dict("<f4", "(1, 1)") + std::string(70000, ' '), "abcd", 2), "at most 65536");
}

TEST_F(Npy, MalformedHeadersAreRefused) {
  for (const std::string header :
       {"", "{", "[]", "{'descr'}", "{'descr': '<f4'", "{'descr': f4}", "{'descr': '<f4' 'shape': ()}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1, 1)}", "{'descr': '<f4", "{'descr': '\\x3cf4'}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1, 1]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, -1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, x)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 99999999999999999999)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)} __import__('os')"}) {
    expect_refused(npy(header, "abcd"), "malformed header");
  }
  std::string deep = "(";
  for (int k = 0; k < 100; ++k) deep += "1,";
  expect_refused(npy(dict("<f4", deep + ")"), "abcd"), "malformed header");
}

TEST_F(Npy, KeysAreNeededOnceAndNoOthersAreAllowed) {
  expect_refused(npy("{'descr': '<f4', 'shape': (1, 1)}", "abcd"), "no key 'fortran_order'");
  expect_refused(npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}", "abcd"),
                 "twice");
  expect_refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), 'x': 'y'}", "abcd"),
                 "unknown key 'x'");
}

TEST_F(Npy, OtherTypesAreRefusedWithTheRemedy) {
  expect_refused(npy(dict("|O", "(1, 1)"), "abcd"), "pickle");
  expect_refused(npy(dict(">f4", "(1, 1)"), "abcd"), "newbyteorder('<')");
  expect_refused(npy(dict("<f2", "(1, 2)"), "abcd"), "allowed are float32, float64");
  expect_refused(npy(dict("<i8", "(1, 1)"), "abcdefgh"), "astype('float32')");
  expect_refused(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 1)}", "abcd"),
                 "structured");
  expect_order_refused(npy(dict("<f4", "(1,)"), "abcd"), "allowed are int32, int64, uint32, uint64");
}

TEST_F(Npy, ShapesOfOtherDimensionsAreRefused) {
  expect_refused(npy(dict("<f4", "()"), "abcd"), "0 dimensions, shape ()");
  expect_refused(npy(dict("<f4", "(1,)"), "abcd"), "1 dimensions, shape (1,)");
  expect_refused(npy(dict("<f4", "(1, 1, 1)"), "abcd"), "reshape(examples, -1)");
  expect_order_refused(npy(dict("<i4", "(1, 1)"), "abcd"), "ravel()");
}

TEST_F(Npy, AShapeNeverAsksForMoreThanTheFileHas) {
  expect_refused(npy(dict("<f4", "(4000000000, 4000000000)"), "abcd"), "more than 2^64 bytes");
  expect_refused(npy(dict("<f8", "(0, 9223372036854775808)"), ""), "more than 2^64 bytes");
  expect_refused(npy(dict("<f4", "(4000000000, 1000000)"), "abcd"), "truncated");
  expect_refused(npy(dict("<f4", "(5000000000, 0)"), ""), "at most 4294967295");
  expect_order_refused(npy(dict("<i8", "(4611686018427387904,)"), "abcdefgh"), "more than 2^64 bytes");
}

TEST_F(Npy, MissingAndTrailingBytesAreRefused) {
  const std::string whole = npy(dict("<f4", "(2, 2)"), bytes_of<float>({1, 2, 3, 4}));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_text(path_, whole.substr(0, length));
    EXPECT_THROW(read_npy_matrix(path_), FileError) << length;
  }
  expect_refused(whole + "x", "trailing bytes");
}

TEST_F(Npy, AMissingFileIsAFileError) { EXPECT_THROW(read_npy_matrix(folder_ / "none.npy"), FileError); }

TEST_F(Npy, OrdersOfAllFourTypesAreRead) {
  const std::vector<Index> expected{2, 0, 1};
  EXPECT_EQ(order(npy(dict("<i4", "(3,)"), bytes_of<std::int32_t>({2, 0, 1}))), expected);
  EXPECT_EQ(order(npy(dict("<i8", "(3,)"), bytes_of<std::int64_t>({2, 0, 1}))), expected);
  EXPECT_EQ(order(npy(dict("<u4", "(3,)"), bytes_of<std::uint32_t>({2, 0, 1}))), expected);
  EXPECT_EQ(order(npy(dict("<u8", "(3,)", "True"), bytes_of<std::uint64_t>({2, 0, 1}))), expected);
}

TEST_F(Npy, EntriesThatAreNoIndexAreNamed) {
  expect_order_refused(npy(dict("<i4", "(2,)"), bytes_of<std::int32_t>({0, -1})), "entry 1 is -1");
  expect_order_refused(npy(dict("<i8", "(1,)"), bytes_of<std::int64_t>({4294967296})),
                       "entry 0 is 4294967296");
  expect_order_refused(npy(dict("<u4", "(1,)"), bytes_of<std::uint32_t>({4294967295U})),
                       "allowed to be 0..4294967294");
  std::vector<std::uint64_t> late(70000);
  late.back() = ~std::uint64_t{0};
  expect_order_refused(npy(dict("<u8", "(70000,)"), bytes_of(late)), "entry 69999 is 18446744073709551615");
}

TEST_F(Npy, IntegersOfAllEightTypesAreRead) {
  expect_integers<std::int8_t>("|i1");
  expect_integers<std::uint8_t>("|u1");
  expect_integers<std::int16_t>("<i2");
  expect_integers<std::uint16_t>("<u2");
  expect_integers<std::int32_t>("<i4");
  expect_integers<std::uint32_t>("<u4");
  expect_integers<std::int64_t>("<i8");
  expect_integers<std::uint64_t>("<u8");
}

TEST_F(Npy, WhatIsNotOneRowOfIntegersIsRefused) {
  expect_integers_refused(npy(dict("<u8", "(2,)"), bytes_of<std::uint64_t>({1, std::uint64_t{1} << 63U})),
                          "entry 1 is 9223372036854775808; a number up to 2^63 - 1 is allowed");
  expect_integers_refused(
      npy(dict("<f8", "(1,)"), bytes_of<double>({1})),
      "dtype '<f8'; allowed are int64, int32, int16, int8, uint64, uint32, uint16, uint8");
  expect_integers_refused(npy(dict("<i8", "(1, 1)"), bytes_of<std::int64_t>({1})),
                          "the array has 2 dimensions");
}

TEST_F(Npy, AWrittenOrderIsReadBack) {
  for (const std::size_t n : {0U, 1U, 7U, 70001U}) {
    const std::vector<Index> expected = identity_order(n);
    write_npy_order(path_, expected);
    EXPECT_EQ(read_npy_order(path_), expected);
  }
  EXPECT_EQ(folder_.count(), 1U);
}

TEST_F(Npy, AWrittenOrderHasTheBytesNumpyWrites) {
  write_npy_order(path_, std::vector<Index>{3, 1});
  std::string header = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";
  header.resize(117, ' ');
  EXPECT_EQ(test::read_text(path_), npy(header, bytes_of<std::int64_t>({3, 1})));
}

}  // namespace
}  // namespace cdgrab
