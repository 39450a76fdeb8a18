// SPDX-License-Identifier: Apache-2.0
// A regular file, gzipped or plain; which of the two is seen from its content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct gzFile_s;

namespace cdgrab::data {

class GzFile {
 public:
  /// Throws FileError for a missing file, a directory, anything that is not a regular file.
  GzFile(const std::filesystem::path& path, std::string_view where);

  /// Fills `out` from where the last call stopped; returns fewer bytes at the end only. Throws FileError
  /// where the compressed data are damaged or cut short. The checksum is verified by the call that
  /// reaches the end.
  std::size_t read(std::span<std::uint8_t> out);

  /// Throws the FileError that says `problem` of this file.
  [[noreturn]] void fail(std::string_view problem) const;

 private:
  struct Close {
    void operator()(gzFile_s* file) const;
  };

  void require_sound() const;

  std::string path_;
  std::string where_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::uint64_t read_ = 0;
};

}  // namespace cdgrab::data
