// SPDX-License-Identifier: Apache-2.0
#include "data/gz_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include "cdgrab/error.hpp"

namespace cdgrab::data {
namespace {

std::string system_message(int code) {
  return fmt::format("{} (error {})", std::generic_category().message(code), code);
}

// zlib begins a message with the number of the descriptor.
std::string_view without_prefix(std::string_view message) {
  const std::size_t end = message.find(": ");
  return end == std::string_view::npos ? message : message.substr(end + 2);
}

}  // namespace

void GzFile::Close::operator()(gzFile_s* file) const { gzclose_r(file); }

// Not blocking, so that a pipe is refused instead of waited for.
GzFile::GzFile(const std::filesystem::path& path, std::string_view where)
    : path_(path.string()), where_(where) {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail(fmt::format("cannot be opened: {}; check the path", system_message(errno)));
  file_.reset(gzdopen(descriptor, "rb"));
  if (file_ == nullptr) {
    ::close(descriptor);
    throw std::bad_alloc();
  }
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    fail(fmt::format("{}; only a regular file is allowed, name one",
                     S_ISDIR(info.st_mode) ? "a directory" : "not a regular file"));
  }
}

std::size_t GzFile::read(std::span<std::uint8_t> out) {
  constexpr std::size_t kMost = 1U << 30U;  // gzread counts in int
  std::size_t filled = 0;
  while (filled < out.size()) {
    const std::size_t step = std::min(out.size() - filled, kMost);
    const int count = gzread(file_.get(), out.data() + filled, static_cast<unsigned>(step));
    if (count > 0) {
      filled += static_cast<std::size_t>(count);
      read_ += static_cast<std::size_t>(count);
    }
    if (count < static_cast<int>(step)) {
      require_sound();
      break;
    }
  }
  return filled;
}

void GzFile::require_sound() const {
  const int system_code = errno;
  int code = Z_OK;
  const std::string_view message = gzerror(file_.get(), &code);
  switch (code) {
    case Z_OK:
    case Z_STREAM_END:
      return;
    case Z_MEM_ERROR:
      throw std::bad_alloc();
    case Z_ERRNO:
      fail(fmt::format("cannot be read: {}; check the disk", system_message(system_code)));
    case Z_BUF_ERROR:
      fail(fmt::format("truncated: the gzip data break off after {} bytes of content; copy the file again",
                       read_));
    default:
      fail(fmt::format("damaged: {} in the gzip data; copy the file again", without_prefix(message)));
  }
}

void GzFile::fail(std::string_view problem) const {
  throw FileError(where_, fmt::format("\"{}\": {}", path_, problem));
}

}  // namespace cdgrab::data
