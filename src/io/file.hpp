// SPDX-License-Identifier: Apache-2.0
// Files: read with their size known beforehand, written beside and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cdgrab::io {

/// `path` holds what it held before or all of `parts`, at every moment and after a crash: the bytes go
/// to a file of their own in the same folder, are synced, and renamed over. A link is followed, the
/// permissions of an existing file are kept. Throws FileError.
void write_atomically(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts,
                      std::string_view where);

/// The whole file. Throws FileError for a missing file, a directory, or one that cannot be read.
std::vector<std::byte> read_file(const std::filesystem::path& path, std::string_view where);

/// A regular file open for reading. Throws FileError for anything else.
class InputFile {
 public:
  InputFile(const std::filesystem::path& path, std::string_view where);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// Bytes, when it was opened.
  [[nodiscard]] std::uint64_t size() const { return size_; }

  /// Fills `out` with the bytes from `offset`. Throws FileError if the file ends before.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  std::string where_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace cdgrab::io
