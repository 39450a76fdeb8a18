// SPDX-License-Identifier: Apache-2.0
#include "io/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "cdgrab/error.hpp"

namespace cdgrab::io {
namespace {

namespace fs = std::filesystem;

std::string_view remedy(int code) {
  switch (code) {
    case ENOENT:
    case ENOTDIR:
      return "check the path; folders are not created";
    case EACCES:
    case EPERM:
      return "check who may read and write there";
    case EROFS:
      return "choose a place that can be written";
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free some space or choose another place";
    case ENAMETOOLONG:
      return "choose a shorter name";
    case EMFILE:
    case ENFILE:
      return "close other files first";
    default:
      return "check the disk";
  }
}

[[noreturn]] void fail(std::string_view where, std::string_view action, const std::string& path, int code) {
  throw FileError(where, fmt::format("cannot {} \"{}\": {} (error {}); {}", action, path,
                                     std::generic_category().message(code), code, remedy(code)));
}

[[noreturn]] void refuse_kind(std::string_view where, const std::string& path, mode_t mode) {
  throw FileError(where, fmt::format("\"{}\" is {}; only a regular file is allowed, name one", path,
                                     S_ISDIR(mode) ? "a directory" : "not a regular file"));
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }
  /// The result of close(); some file systems report a failed write only here.
  int close() { return ::close(release()); }

 private:
  int value_;
};

// Removes a file when it goes out of scope, unless told to keep it.
class Remover {
 public:
  explicit Remover(std::string path) : path_(std::move(path)) {}
  ~Remover() {
    if (armed_) ::unlink(path_.c_str());
  }
  Remover(const Remover&) = delete;
  Remover& operator=(const Remover&) = delete;

  void keep() { armed_ = false; }

 private:
  std::string path_;
  bool armed_ = true;
};

// Where a chain of links leads, so that a link stays a link.
fs::path follow_links(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_symlink(path, ignored)) return path;
  fs::path target = fs::weakly_canonical(path, ignored);
  return ignored ? path : target;
}

// Permissions of the file in the way, if there is one.
std::optional<mode_t> existing_mode(const std::string& path, std::string_view where) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  if (!S_ISREG(info.st_mode)) refuse_kind(where, path, info.st_mode);
  return info.st_mode & mode_t{0777};
}

// True if the name still leads to the open file.
bool is_at(int descriptor, const std::string& name) {
  struct stat open {};
  struct stat named {};
  return ::fstat(descriptor, &open) == 0 && ::lstat(name.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

// True if it was locked. A lock ends with its process, however that ends.
bool lock(int descriptor) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0)
    if (errno != EINTR) return false;
  return true;
}

// For writing if it may be: some file systems lock nothing else.
int open_to_lock(const std::string& name) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int descriptor = ::open(name.c_str(), O_WRONLY | kFlags);
  return descriptor < 0 && errno == EACCES ? ::open(name.c_str(), O_RDONLY | kFlags) : descriptor;
}

// Removes what a writer has left that is no more; one that is at work holds the lock.
void remove_abandoned(const std::string& name) {
  const Descriptor descriptor(open_to_lock(name));
  if (descriptor.get() >= 0 && lock(descriptor.get()) && is_at(descriptor.get(), name))
    ::unlink(name.c_str());
}

// The first free name of those in the folder, short whatever the target's is, so that it always fits. Names
// are few and used again, so that writers that are killed leave no more files than were at work at once.
std::pair<int, std::string> open_beside(const fs::path& folder, const std::string& target,
                                        std::string_view where) {
  constexpr int kAttempts = 100'000;
  for (int number = 0; number < kAttempts; ++number) {
    std::string name = (folder / fmt::format(".cdgrab-{}.tmp", number)).string();
    remove_abandoned(name);
    Descriptor descriptor(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (descriptor.get() < 0 && errno != EEXIST && errno != EINTR) break;
    if (descriptor.get() < 0) continue;
    // Where files cannot be locked, no writer takes another's for abandoned either.
    const bool lost = !lock(descriptor.get()) && errno == EWOULDBLOCK;
    if (!lost && is_at(descriptor.get(), name)) return {descriptor.release(), std::move(name)};
  }
  fail(where, "write", target, errno);
}

void write_all(int descriptor, std::span<const std::byte> bytes, const std::string& target,
               std::string_view where) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(where, "write", target, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void sync(int descriptor, const std::string& target, std::string_view where) {
  while (::fsync(descriptor) != 0) {
    if (errno == EINVAL || errno == ENOTSUP) return;  // not a thing this file system can do
    if (errno != EINTR) fail(where, "write", target, errno);
  }
}

// Makes the rename itself last. A folder that may be written but not read cannot be synced.
void sync_folder(const fs::path& folder, const std::string& target, std::string_view where) {
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() >= 0) sync(descriptor.get(), target, where);
}

}  // namespace

void write_atomically(const fs::path& path, std::span<const std::span<const std::byte>> parts,
                      std::string_view where) {
  const fs::path target_path = follow_links(path);
  const std::string target = target_path.string();
  const fs::path folder = target_path.has_parent_path() ? target_path.parent_path() : fs::path(".");
  const std::optional<mode_t> mode = existing_mode(target, where);

  const auto [opened, name] = open_beside(folder, target, where);
  Descriptor descriptor(opened);
  // The lock lasts until the file has its name or is gone; closing, which may fail, comes before.
  const Descriptor locked(::fcntl(opened, F_DUPFD_CLOEXEC, 0));
  Remover remover(name);
  if (locked.get() < 0) fail(where, "write", target, errno);
  if (mode && ::fchmod(descriptor.get(), *mode) != 0) fail(where, "set the permissions of", target, errno);
  for (const std::span<const std::byte> part : parts) write_all(descriptor.get(), part, target, where);
  sync(descriptor.get(), target, where);
  if (descriptor.close() != 0 && errno != EINTR) fail(where, "write", target, errno);
  if (::rename(name.c_str(), target.c_str()) != 0) fail(where, "replace", target, errno);
  remover.keep();
  sync_folder(folder, target, where);
}

std::vector<std::byte> read_file(const fs::path& path, std::string_view where) {
  const InputFile file(path, where);
  std::vector<std::byte> bytes;
  try {
    bytes.resize(file.size());
  } catch (const std::exception&) {
    throw FileError(where, fmt::format("\"{}\" has {} bytes, more than this machine can hold in memory; use "
                                       "a smaller file",
                                       path.string(), file.size()));
  }
  file.read_at(0, bytes);
  return bytes;
}

// Not blocking, so that a pipe is refused instead of waited for.
InputFile::InputFile(const fs::path& path, std::string_view where) : path_(path.string()), where_(where) {
  Descriptor descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) fail(where_, "open", path_, errno);
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0) fail(where_, "open", path_, errno);
  if (!S_ISREG(info.st_mode)) refuse_kind(where_, path_, info.st_mode);
  size_ = static_cast<std::uint64_t>(info.st_size);
  descriptor_ = descriptor.release();
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR) continue;
      fail(where_, "read", path_, errno);
    }
    if (count == 0) {
      throw FileError(where_, fmt::format("\"{}\" ends after {} bytes; {} were there when it was opened: it "
                                          "was cut short while being read, try again",
                                          path_, offset, size_));
    }
    offset += static_cast<std::uint64_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace cdgrab::io
