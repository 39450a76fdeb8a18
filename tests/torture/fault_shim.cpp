// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program that saves: lets what is written beside (*.tmp, *.part) fail as disks and kills
// make it fail.
//   CDGRAB_FAULT=byte:N   SIGKILL after N bytes, in the middle of a write
//   CDGRAB_FAULT=call:N   SIGKILL at the N-th place between write, fsync and rename
//   CDGRAB_FAULT=full:N   no space left after N bytes
//   CDGRAB_FAULT_LOG=FILE a line for every file that got its name; bytes and places are counted there too
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

struct Fault {
  enum class Kind { kNone, kByte, kCall, kFull } kind = Kind::kNone;
  long left = 0;
  long bytes = 0;
  long calls = 0;

  Fault() {
    const char* text = std::getenv("CDGRAB_FAULT");
    if (text == nullptr) return;
    const std::string_view said(text);
    if (said.starts_with("byte:")) kind = Kind::kByte;
    if (said.starts_with("call:")) kind = Kind::kCall;
    if (said.starts_with("full:")) kind = Kind::kFull;
    left = std::atol(text + 5);
  }
};

Fault& fault() {
  static Fault one;
  return one;
}

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

bool is_beside(std::string_view path) { return path.ends_with(".tmp") || path.ends_with(".part"); }

bool is_beside(int descriptor) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = readlink(link.c_str(), path, sizeof path);
  return length > 0 && is_beside(std::string_view(path, static_cast<std::size_t>(length)));
}

void place() {
  ++fault().calls;
  if (fault().kind == Fault::Kind::kCall && --fault().left < 0) die();
}

void log_name(const char* path) {
  const char* log = std::getenv("CDGRAB_FAULT_LOG");
  if (log == nullptr) return;
  const char* slash = std::strrchr(path, '/');
  const std::string line = std::string(slash == nullptr ? path : slash + 1) + " " +
                           std::to_string(fault().bytes) + " " + std::to_string(fault().calls) + "\n";
  const int descriptor = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) return;
  [[maybe_unused]] const ssize_t written =
      real<decltype(write)>("write")(descriptor, line.data(), line.size());
  close(descriptor);
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* data, std::size_t count) {
  static auto* const next = real<decltype(write)>("write");
  if (!is_beside(descriptor)) return next(descriptor, data, count);
  place();
  Fault& f = fault();
  f.bytes += static_cast<long>(count);
  if (f.kind != Fault::Kind::kByte && f.kind != Fault::Kind::kFull) return next(descriptor, data, count);
  const bool cut = f.left < static_cast<long>(count);
  if (f.kind == Fault::Kind::kFull && f.left == 0 && cut) {
    errno = ENOSPC;
    return -1;
  }
  const ssize_t written = next(descriptor, data, cut ? static_cast<std::size_t>(f.left) : count);
  if (cut && f.kind == Fault::Kind::kByte) die();
  if (written > 0) f.left -= written;
  return written;
}

ssize_t writev(int descriptor, const iovec* parts, int count) {
  static auto* const next = real<decltype(writev)>("writev");
  if (!is_beside(descriptor)) return next(descriptor, parts, count);
  ssize_t total = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t written = write(descriptor, parts[i].iov_base, parts[i].iov_len);
    if (written < 0) return total > 0 ? total : -1;
    total += written;
    if (static_cast<std::size_t>(written) < parts[i].iov_len) break;
  }
  return total;
}

int fsync(int descriptor) {
  static auto* const next = real<decltype(fsync)>("fsync");
  if (is_beside(descriptor)) place();
  return next(descriptor);
}

int rename(const char* from, const char* to) {
  static auto* const next = real<decltype(rename)>("rename");
  if (!is_beside(std::string_view(from))) return next(from, to);
  place();
  const int result = next(from, to);
  if (result == 0) log_name(to);
  place();
  return result;
}
}
