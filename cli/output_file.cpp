// SPDX-License-Identifier: Apache-2.0
#include "output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "cdgrab/error.hpp"

namespace cdgrab::cli {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) {
  return path.parent_path().empty() ? fs::path(".") : path.parent_path();
}

[[noreturn]] void fail(std::string_view option, const fs::path& path, std::string_view step) {
  const int error = errno;
  throw FileError(option, fmt::format("cannot {} `{}`: {}; choose another place or free this one", step,
                                      path.string(), std::strerror(error)));
}

/// A file of our own that goes away unless it is renamed to where it belongs.
class FileBeside {
 public:
  FileBeside(const fs::path& path, std::string_view option)
      : option_(option), path_(path), name_(path.string() + ".XXXXXX") {
    descriptor_ = mkstemp(name_.data());
    if (descriptor_ < 0) fail(option_, path_, "write");
  }
  FileBeside(const FileBeside&) = delete;
  FileBeside& operator=(const FileBeside&) = delete;
  ~FileBeside() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!done_) unlink(name_.c_str());
  }

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(descriptor_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(option_, path_, "write");
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  void rename_into_place() {
    const mode_t mask = umask(0);
    umask(mask);
    if (fchmod(descriptor_, 0666 & ~mask) != 0 || fsync(descriptor_) != 0) fail(option_, path_, "write");
    const int descriptor = std::exchange(descriptor_, -1);
    if (close(descriptor) != 0) fail(option_, path_, "write");
    if (rename(name_.c_str(), path_.c_str()) != 0) fail(option_, path_, "replace");
    done_ = true;
  }

 private:
  std::string_view option_;
  fs::path path_;
  std::string name_;
  int descriptor_ = -1;
  bool done_ = false;
};

}  // namespace

void require_writable(const fs::path& path, std::string_view option) {
  std::error_code ignored;
  if (!fs::is_directory(folder_of(path), ignored)) {
    throw FileError(
        option, fmt::format("the folder of `{}` does not exist; make it, or name another", path.string()));
  }
  if (!path.has_filename() || fs::is_directory(path, ignored)) {
    throw FileError(option, fmt::format("`{}` is a folder; name a file in it", path.string()));
  }
  if (access(folder_of(path).c_str(), W_OK | X_OK) != 0) fail(option, folder_of(path), "write to the folder");
}

void write_text_file(const fs::path& path, std::string_view text, std::string_view option) {
  FileBeside file(path, option);
  file.write(text);
  file.rename_into_place();
}

}  // namespace cdgrab::cli
