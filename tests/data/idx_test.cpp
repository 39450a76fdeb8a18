// SPDX-License-Identifier: Apache-2.0
#include "data/idx.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cdgrab/error.hpp"
#include "data/files.hpp"
#include "unit/temp_folder.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::read_text;
using test::TempFolder;
using test::write_gz;
using test::write_text;

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (const unsigned shift : {24U, 16U, 8U, 0U}) bytes.push_back(static_cast<char>(value >> shift & 0xFFU));
  return bytes;
}

std::string header(const std::vector<std::uint32_t>& shape, char type = 8) {
  std::string bytes{'\0', '\0', type, static_cast<char>(shape.size())};
  for (const std::uint32_t size : shape) bytes += big_endian(size);
  return bytes;
}

long peak_memory_kb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

class Idx : public testing::Test {
 protected:
  // Every message names the file and holds `part`.
  void expect_refused(const std::string& part) const {
    const auto message = message_of<FileError>([&] { static_cast<void>(read_idx(path_)); });
    EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  void expect_refused(const std::string& content, const std::string& part) const {
    write_text(path_, content);
    expect_refused(part);
  }
  void expect_gz_refused(const std::string& content, const std::string& part) const {
    write_gz(path_, content);
    expect_refused(part);
  }

  TempFolder folder_;
  fs::path path_ = folder_ / "a-idx3-ubyte";
};

TEST_F(Idx, PlainAndGzippedAreReadTheSame) {
  const std::string content = header({2, 1, 3}) + std::string("\x00\x01\x7f\x80\xfe\xff", 6);
  for (const bool gz : {false, true}) {
    gz ? write_gz(path_, content) : write_text(path_, content);
    const Bytes bytes = read_idx(path_);
    EXPECT_EQ(bytes.shape, (std::vector<std::uint64_t>{2, 1, 3}));
    EXPECT_EQ(bytes.values, (std::vector<std::uint8_t>{0, 1, 127, 128, 254, 255}));
  }
}

TEST_F(Idx, DataOfSeveralChunksAreReadWhole) {
  constexpr std::uint32_t kCount = (5U << 19U) + 3;
  std::string data(kCount, '\0');
  for (std::size_t k = 0; k < data.size(); ++k) data[k] = static_cast<char>(k * 2654435761U >> 24U);
  for (const bool gz : {false, true}) {
    gz ? write_gz(path_, header({kCount}) + data) : write_text(path_, header({kCount}) + data);
    const Bytes bytes = read_idx(path_);
    EXPECT_EQ(std::string(bytes.values.begin(), bytes.values.end()), data);
  }
}

TEST_F(Idx, ASizeOfZeroIsNoData) {
  write_text(path_, header({0, 28, 28}));
  EXPECT_TRUE(read_idx(path_).values.empty());
  expect_refused(header({0, 28, 28}) + "x", "trailing bytes: shape 0 x 28 x 28 asks for 0 bytes");
}

TEST_F(Idx, WhatIsNoRegularFileIsRefused) {
  expect_refused("cannot be opened: No such file or directory (error 2); check the path");
  fs::create_directory(path_);
  expect_refused("a directory; only a regular file is allowed");
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect_refused("not a regular file");
}

TEST_F(Idx, BadHeadersAreRefused) {
  expect_refused("", "empty");
  expect_gz_refused("not IDX at all", "not an IDX file: it begins with the bytes 6e 6f 74 20");
  expect_refused("PK\x03\x04", "not an IDX file: it begins with the bytes 50 4b 03 04");
  expect_refused(std::string(3, '\0'), "not an IDX file: it begins with the bytes 00 00 00;");
  expect_refused(header({2}, 0x0d), "entries of type 0x0d; allowed is 0x08");
  expect_refused(header({}), "0 dimensions; allowed are 1 to 8");
  expect_refused(header(std::vector<std::uint32_t>(9, 1)) + "x", "9 dimensions; allowed are 1 to 8");
  expect_refused(header({2, 3}).substr(0, 11), "truncated: it ends before the sizes of its 2 dimensions");
}

TEST_F(Idx, ALengthThatIsNotTheShapesIsRefused) {
  expect_refused(header({2, 3}) + "12345", "truncated: shape 2 x 3 asks for 6 bytes of data, the file has 5");
  expect_refused(header({2, 3}) + "1234567", "trailing bytes: shape 2 x 3 asks for 6 bytes");
  expect_gz_refused(header({2, 3}) + "12345", "truncated: shape 2 x 3 asks for 6 bytes");
  expect_gz_refused(header({2, 3}) + "1234567", "trailing bytes: shape 2 x 3 asks for 6 bytes");
}

TEST_F(Idx, SizesAreBoundedWithoutOverflow) {
  expect_refused(header({65536, 65537}), "shape 65536 x 65537 asks for more than 4294967296 bytes");
  expect_refused(header(std::vector<std::uint32_t>(8, 0xFFFFFFFFU)), "asks for more than 4294967296 bytes");
  expect_refused(header({0, 0xFFFFFFFFU, 2}), "asks for more than 4294967296 bytes");
}

// The only test with large claims: the peak is the process's, and one of before would hide it.
TEST_F(Idx, AClaimTakesNoMemory) {
  const std::string claim = header({32768, 32768}) + "12345";
  const long before = peak_memory_kb();
  expect_refused(claim, "asks for 1073741824 bytes of data, the file has 5");
  expect_gz_refused(claim, "asks for 1073741824 bytes of data, the file has 5");
  EXPECT_LT(peak_memory_kb() - before, 64 * 1024);
}

TEST_F(Idx, AGzipCutAnywhereIsRefused) {
  std::string data(3000, '\0');
  for (std::size_t k = 0; k < data.size(); ++k) data[k] = static_cast<char>(k * k);
  write_gz(path_, header({3000}) + data);
  const std::string whole = read_text(path_);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_text(path_, whole.substr(0, length));
    EXPECT_THROW(static_cast<void>(read_idx(path_)), FileError) << length << " of " << whole.size();
  }
  expect_refused(whole.substr(0, whole.size() - 1), "truncated: the gzip data break off");
}

TEST_F(Idx, AGzipWithAWrongChecksumIsRefused) {
  write_gz(path_, header({3}) + "abc");
  std::string whole = read_text(path_);
  whole[whole.size() - 8] = static_cast<char>(whole[whole.size() - 8] + 1);
  expect_refused(whole, "damaged: incorrect data check in the gzip data");
}

class Mnist : public testing::Test {
 protected:
  void write(const std::string& images, const std::string& labels) const {
    write_text(folder_ / "t10k-images-idx3-ubyte", images);
    write_gz(folder_ / "t10k-labels-idx1-ubyte.gz", labels);
  }
  void expect_refused(const std::string& part) const {
    const auto message =
        message_of<FileError>([&] { static_cast<void>(read_mnist(folder_.path(), Split::kTest)); });
    EXPECT_NE(message.find(folder_.path().string()), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }

  std::string two_images_ = header({2, 28, 28}) + std::string(2 * 28 * 28, '\x05');
  std::string two_labels_ = header({2}) + std::string("\x09\x00", 2);
  TempFolder folder_;
};

TEST_F(Mnist, ImagesAndLabelsAreFoundPlainOrGzipped) {
  write(two_images_, two_labels_);
  const LabelledImages test = read_mnist(folder_.path(), Split::kTest);
  EXPECT_EQ(test.images.shape, (std::vector<std::uint64_t>{2, 28, 28}));
  EXPECT_EQ(test.labels.values, (std::vector<std::uint8_t>{9, 0}));
}

TEST_F(Mnist, MissingFilesAreNamed) {
  expect_refused(R"(has neither "t10k-images-idx3-ubyte" nor "t10k-images-idx3-ubyte.gz")");
  write_text(folder_ / "t10k-images-idx3-ubyte", two_images_);
  expect_refused(R"(has neither "t10k-labels-idx1-ubyte" nor "t10k-labels-idx1-ubyte.gz")");
}

TEST_F(Mnist, WhatDoesNotFitTogetherIsRefused) {
  write(two_images_, header({3}) + std::string(3, '\0'));
  expect_refused("2 images in");
  write(two_images_, header({2}) + std::string("\x09\x0a", 2));
  expect_refused("label 10 of example 1; allowed are 0..9");
  write(header({2, 28}) + std::string(2 * 28, '\0'), two_labels_);
  expect_refused("shape 2 x 28; allowed is n x 28 x 28");
  write(two_images_, header({2, 1}) + std::string(2, '\0'));
  expect_refused("shape 2 x 1; allowed is n:");
}

TEST(RealMnist, HasTheKnownSizesAndCounts) {
  const fs::path folder = test::real_data("mnist");
  if (folder.empty()) GTEST_SKIP() << "CDGRAB_DATA is not set: the files of MNIST were NOT read";
  const LabelledImages train = read_mnist(folder, Split::kTrain);
  const LabelledImages test = read_mnist(folder, Split::kTest);
  EXPECT_EQ(train.images.shape, (std::vector<std::uint64_t>{60000, 28, 28}));
  EXPECT_EQ(test.images.shape, (std::vector<std::uint64_t>{10000, 28, 28}));
  std::array<int, 10> counts{};
  for (const std::uint8_t label : train.labels.values) ++counts[label];
  EXPECT_EQ(counts, (std::array<int, 10>{5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949}));
}

}  // namespace
}  // namespace cdgrab::data
