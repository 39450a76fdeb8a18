// SPDX-License-Identifier: Apache-2.0
#include "data/cifar10.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cdgrab/error.hpp"
#include "data/folder.hpp"
#include "data/gz_file.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint8_t kClasses = 10;
constexpr std::size_t kImageBytes = std::size_t{3} * 32 * 32;
constexpr std::size_t kRecordBytes = 1 + kImageBytes;

class BatchReader {
 public:
  BatchReader(const fs::path& path, LabelledImages& all) : file_(path, "read_cifar10"), all_(all) {}

  // Adds the file's records to `all`.
  void read() {
    constexpr std::size_t kRecords = 64;
    std::vector<std::uint8_t> block(kRecords * kRecordBytes);
    std::size_t count = 0;
    do {
      count = file_.read(block);
      for (std::size_t at = 0; at < count; at += kRecordBytes) {
        if (count - at < kRecordBytes) fail_length(count - at);
        add(std::span(block).subspan(at, kRecordBytes));
      }
    } while (count == block.size());
    if (records_ == 0) {
      file_.fail("empty; a batch of CIFAR-10 has at least one record of 3073 bytes: copy the file again");
    }
  }

 private:
  void add(std::span<const std::uint8_t> record) {
    const std::uint8_t label = record.front();
    if (label >= kClasses) {
      file_.fail(fmt::format(
          "label {} at offset {}; allowed are 0..9, one every {} bytes: name a file of the binary "
          "version of CIFAR-10",
          label, records_ * kRecordBytes, kRecordBytes));
    }
    all_.labels.values.push_back(label);
    const auto image = record.subspan(1);
    all_.images.values.insert(all_.images.values.end(), image.begin(), image.end());
    ++records_;
  }

  [[noreturn]] void fail_length(std::size_t left) const {
    file_.fail(
        fmt::format("truncated: {} bytes at offset {}, where a record of {} begins; allowed are whole "
                    "records: copy the file again, or name one of the binary version of CIFAR-10",
                    left, records_ * kRecordBytes, kRecordBytes));
  }

  GzFile file_;
  LabelledImages& all_;
  std::uint64_t records_ = 0;
};

LabelledImages read_batches(const std::vector<fs::path>& paths) {
  LabelledImages all;
  for (const fs::path& path : paths) BatchReader(path, all).read();
  all.images.shape = {all.labels.values.size(), 3, 32, 32};
  all.labels.shape = {all.labels.values.size()};
  return all;
}

fs::path find_batch(const fs::path& folder, const std::string& name) {
  if (const std::optional<fs::path> path = find_plain_or_gz(folder, name)) return *path;
  throw FileError(
      "read_cifar10",
      fmt::format("\"{}\" has neither \"{}\" nor \"{}.gz\"; name the folder that has the six files of "
                  "the binary version of CIFAR-10, data_batch_1.bin .. 5 and test_batch.bin",
                  folder.string(), name, name));
}

}  // namespace

LabelledImages read_cifar10(const fs::path& folder, Split split) {
  if (split == Split::kTest) return read_batches({find_batch(folder, "test_batch.bin")});
  std::vector<fs::path> paths;
  for (int k = 1; k <= 5; ++k) paths.push_back(find_batch(folder, fmt::format("data_batch_{}.bin", k)));
  return read_batches(paths);
}

LabelledImages read_cifar10_batch(const fs::path& path) { return read_batches({path}); }

}  // namespace cdgrab::data
