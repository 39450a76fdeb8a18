// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets have in common: bytes become a file, and whatever is in it, a reader gives a value
// that keeps its contract or throws an error of the kind that it promises. Anything else ends the process.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

#include "cdgrab/error.hpp"

namespace cdgrab::fuzz {

inline void require(bool kept) {
  if (!kept) std::abort();
}

/// A file in memory that has a path.
class AnyFile {
 public:
  explicit AnyFile(std::span<const std::uint8_t> bytes) : descriptor_(::memfd_create("any", MFD_CLOEXEC)) {
    require(descriptor_ >= 0);
    require(::write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~AnyFile() { ::close(descriptor_); }
  AnyFile(const AnyFile&) = delete;
  AnyFile& operator=(const AnyFile&) = delete;

  [[nodiscard]] std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

/// What read() throws is of one of these kinds, if it throws; a broken invariant is of none.
template <class... Kinds, class Read>
void value_or(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    require((... || (dynamic_cast<const Kinds*>(&error) != nullptr)));
    require(dynamic_cast<const InvariantError*>(&error) == nullptr);
    require(!std::string(error.what()).empty());
  }
}

template <class Read>
void value_or_file_error(const Read& read) {
  value_or<FileError>(read);
}

}  // namespace cdgrab::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
