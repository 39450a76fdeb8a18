// SPDX-License-Identifier: Apache-2.0
// The format: two zero bytes, the type of the entries, the number of dimensions, the sizes as big-endian
// 32-bit numbers, the entries.
#include "data/idx.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cdgrab/error.hpp"
#include "data/folder.hpp"
#include "data/gz_file.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMagicBytes = 4;
constexpr std::uint8_t kUnsignedByte = 0x08;
constexpr std::size_t kMaxDims = 8;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 32U;
constexpr std::size_t kChunk = std::size_t{1} << 20U;

std::string in_words(const std::vector<std::uint64_t>& shape) {
  return fmt::format("{}", fmt::join(shape, " x "));
}

// The number of dimensions.
std::size_t read_magic(GzFile& file) {
  std::array<std::uint8_t, kMagicBytes> magic{};
  const std::size_t count = file.read(magic);
  if (count == 0) file.fail("empty; an IDX file has a header of at least 8 bytes: copy the file again");
  if (count < kMagicBytes || magic[0] != 0 || magic[1] != 0) {
    file.fail(
        fmt::format("not an IDX file: it begins with the bytes {:02x}; allowed is 00 00 08 and the number of "
                    "dimensions: name another file",
                    fmt::join(std::span(magic).first(count), " ")));
  }
  if (magic[2] != kUnsignedByte) {
    file.fail(
        fmt::format("entries of type 0x{:02x}; allowed is 0x08 (unsigned byte): convert the file", magic[2]));
  }
  if (magic[3] == 0 || magic[3] > kMaxDims) {
    file.fail(
        fmt::format("{} dimensions; allowed are 1 to {}: reshape and write it again", magic[3], kMaxDims));
  }
  return magic[3];
}

std::vector<std::uint64_t> read_shape(GzFile& file) {
  std::vector<std::uint64_t> shape(read_magic(file));
  for (std::uint64_t& size : shape) {
    std::array<std::uint8_t, 4> digits{};
    if (file.read(digits) < digits.size()) {
      file.fail(fmt::format("truncated: it ends before the sizes of its {} dimensions; copy the file again",
                            shape.size()));
    }
    for (const std::uint8_t digit : digits) size = size << 8U | digit;
  }
  return shape;
}

// Dimension by dimension, so that sizes beside a 0 are held to the bound as well.
std::uint64_t require_size(const std::vector<std::uint64_t>& shape, const GzFile& file) {
  std::uint64_t bytes = 1;
  for (const std::uint64_t size : shape) {
    bytes *= std::max(size, std::uint64_t{1});  // below 2^32 times at most 2^32
    if (bytes > kMaxBytes) {
      file.fail(
          fmt::format("shape {} asks for more than {} bytes, the most that is allowed: copy the file "
                      "again, or split it",
                      in_words(shape), kMaxBytes));
    }
  }
  return std::ranges::count(shape, 0U) > 0 ? 0 : bytes;
}

[[noreturn]] void fail_length(const GzFile& file, std::string_view what,
                              const std::vector<std::uint64_t>& shape, std::uint64_t expected,
                              std::string_view present) {
  file.fail(fmt::format("{}: shape {} asks for {} bytes of data, the file has {}; copy the file again", what,
                        in_words(shape), expected, present));
}

std::vector<std::uint8_t> read_values(GzFile& file, const std::vector<std::uint64_t>& shape) {
  const std::uint64_t count = require_size(shape, file);
  std::vector<std::uint8_t> values;
  while (values.size() < count) {
    const std::size_t before = values.size();
    values.resize(static_cast<std::size_t>(std::min<std::uint64_t>(before + kChunk, count)));
    const std::size_t present = before + file.read(std::span(values).subspan(before));
    if (present < values.size()) fail_length(file, "truncated", shape, count, fmt::format("{}", present));
  }
  std::uint8_t extra = 0;
  if (file.read({&extra, 1}) > 0) fail_length(file, "trailing bytes", shape, count, "more");
  return values;
}

fs::path find_file(const fs::path& folder, const std::string& name) {
  if (const std::optional<fs::path> path = find_plain_or_gz(folder, name)) return *path;
  throw FileError("read_mnist", fmt::format("\"{}\" has neither \"{}\" nor \"{}.gz\"; name the folder that "
                                            "has the four files of MNIST, as they were downloaded",
                                            folder.string(), name, name));
}

// A size of 0 among `expected` stands for any.
Bytes read_shaped(const fs::path& path, const std::vector<std::uint64_t>& expected) {
  Bytes bytes = read_idx(path);
  const bool fits = std::ranges::equal(bytes.shape, expected, [](std::uint64_t size, std::uint64_t wanted) {
    return wanted == 0 || size == wanted;
  });
  if (!fits) {
    throw FileError("read_mnist",
                    fmt::format("\"{}\": shape {}; allowed is n{}: name a folder with MNIST", path.string(),
                                in_words(bytes.shape), expected.size() == 1 ? "" : " x 28 x 28"));
  }
  return bytes;
}

}  // namespace

Bytes read_idx(const fs::path& path) {
  GzFile file(path, "read_idx");
  Bytes bytes{read_shape(file), {}};
  bytes.values = read_values(file, bytes.shape);
  return bytes;
}

LabelledImages read_mnist(const fs::path& folder, Split split) {
  constexpr std::uint8_t kLabels = 10;
  const std::string name = split == Split::kTrain ? "train" : "t10k";
  const fs::path images = find_file(folder, name + "-images-idx3-ubyte");
  const fs::path labels = find_file(folder, name + "-labels-idx1-ubyte");
  LabelledImages both{read_shaped(images, {0, 28, 28}), read_shaped(labels, {0})};
  if (both.images.shape[0] != both.labels.shape[0]) {
    throw FileError(
        "read_mnist",
        fmt::format("{} images in \"{}\" and {} labels in \"{}\"; one label per image is "
                    "allowed: copy the two files again",
                    both.images.shape[0], images.string(), both.labels.shape[0], labels.string()));
  }
  const auto bad = std::ranges::find_if(both.labels.values, [](std::uint8_t l) { return l >= kLabels; });
  if (bad != both.labels.values.end()) {
    throw FileError("read_mnist",
                    fmt::format("\"{}\": label {} of example {}; allowed are 0..9: copy the file again",
                                labels.string(), *bad, bad - both.labels.values.begin()));
  }
  return both;
}

}  // namespace cdgrab::data
