// SPDX-License-Identifier: Apache-2.0
#include "data/cifar10.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "data/files.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::write_gz;
using test::write_text;

std::string record(int label, char pixel) { return static_cast<char>(label) + std::string(3072, pixel); }

class Cifar10 : public testing::Test {
 protected:
  void expect_refused(const std::string& content, const std::string& part) const {
    write_text(path_, content);
    test::expect_refused(path_, part, [&] { return read_cifar10_batch(path_); });
  }

  TempFolder folder_;
  fs::path path_ = folder_ / "test_batch.bin";
};

TEST_F(Cifar10, TheFiveBatchesAreJoinedInOrder) {
  for (int k = 1; k <= 5; ++k) {
    const std::string name = "data_batch_" + std::to_string(k) + ".bin";
    const std::string content = record(k, static_cast<char>(10 * k)) + record(0, '\xFF');
    k == 3 ? write_gz(folder_ / (name + ".gz"), content) : write_text(folder_ / name, content);
  }
  const LabelledImages all = read_cifar10(folder_.path(), Split::kTrain);
  EXPECT_EQ(all.images.shape, (std::vector<std::uint64_t>{10, 3, 32, 32}));
  EXPECT_EQ(all.labels.shape, (std::vector<std::uint64_t>{10}));
  EXPECT_EQ(all.labels.values, (std::vector<std::uint8_t>{1, 0, 2, 0, 3, 0, 4, 0, 5, 0}));
  ASSERT_EQ(all.images.values.size(), 10U * 3072);
  EXPECT_EQ(all.images.values[4 * 3072], 30);
  EXPECT_EQ(all.images.values[6 * 3072 - 1], 255);
}

TEST_F(Cifar10, AFileOfManyBlocksIsReadWhole) {
  std::string content;
  for (int k = 0; k < 130; ++k) content += record(k % 10, static_cast<char>(k));
  write_text(path_, content);
  const LabelledImages all = read_cifar10(folder_.path(), Split::kTest);
  ASSERT_EQ(all.labels.values.size(), 130U);
  for (std::size_t k = 0; k < 130; ++k) {
    EXPECT_EQ(all.labels.values[k], k % 10);
    EXPECT_EQ(all.images.values[k * 3072 + 3071], k);
  }
}

TEST_F(Cifar10, MissingBatchesAreNamed) {
  const auto expect_missing = [&](Split split, const std::string& part) {
    test::expect_refused(folder_.path(), part, [&] { return read_cifar10(folder_.path(), split); });
  };
  expect_missing(Split::kTest, R"(has neither "test_batch.bin" nor "test_batch.bin.gz")");
  write_text(folder_ / "data_batch_1.bin", record(1, 'x'));
  expect_missing(Split::kTrain, R"(has neither "data_batch_2.bin" nor "data_batch_2.bin.gz")");
}

TEST_F(Cifar10, BadFilesAreRefusedWithTheOffset) {
  expect_refused("", "empty; a batch of CIFAR-10 has at least one record of 3073 bytes");
  expect_refused(record(1, 'x') + record(10, 'x'), "label 10 at offset 3073; allowed are 0..9");
  expect_refused("not CIFAR", "truncated: 9 bytes at offset 0");
  expect_refused(record(1, 'x') + "\x02", "truncated: 1 bytes at offset 3073, where a record of 3073 begins");
}

TEST(RealCifar10, HasTheKnownSizesAndCounts) {
  const fs::path folder = test::real_data("cifar-10-batches-bin");
  if (folder.empty() || !fs::exists(folder)) {
    GTEST_SKIP() << "CDGRAB_DATA has no cifar-10-batches-bin: the files of CIFAR-10 were NOT read";
  }
  const LabelledImages train = read_cifar10(folder, Split::kTrain);
  EXPECT_EQ(train.images.shape, (std::vector<std::uint64_t>{50000, 3, 32, 32}));
  EXPECT_EQ(std::ranges::count(train.labels.values, 7), 5000);
  EXPECT_EQ(read_cifar10(folder, Split::kTest).labels.values.size(), 10000U);
}

}  // namespace
}  // namespace cdgrab::data
