// SPDX-License-Identifier: Apache-2.0
#include "workers.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include "interrupt.hpp"

namespace cdgrab::cli {
namespace {

constexpr char kFailed = '!';  // begins the line of an error

[[noreturn]] void fail(std::string_view step) {
  throw std::runtime_error(fmt::format("cannot {}: {}; use fewer --jobs", step, std::strerror(errno)));
}

void write_line(int descriptor, std::string_view line) {
  const std::string text = std::string(line) + '\n';
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = write(descriptor, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) _exit(1);  // the parent is gone
    at += static_cast<std::size_t>(written);
  }
}

[[noreturn]] void work_in_child(const Piece& piece, int descriptor) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    piece.work([&](std::string_view line) { write_line(descriptor, line); });
    _exit(0);
  } catch (const Interrupted&) {
    _exit(130);
  } catch (const std::bad_alloc&) {
    write_line(descriptor, fmt::format("{}out of memory; use fewer --jobs or a smaller --batch", kFailed));
  } catch (const std::exception& error) {
    std::string message = error.what();
    for (char& c : message) c = c == '\n' ? ' ' : c;
    write_line(descriptor, kFailed + message);
  }
  _exit(1);
}

class Child {
 public:
  explicit Child(const Piece& piece) : piece_(&piece) {
    std::array<int, 2> pipe;
    if (pipe2(pipe.data(), O_CLOEXEC) != 0) fail("open a pipe");
    std::fflush(nullptr);
    process_ = fork();
    if (process_ == 0) work_in_child(piece, pipe[1]);
    close(pipe[1]);
    descriptor_ = pipe[0];
    if (process_ < 0) {
      close(descriptor_);
      fail("start a process");
    }
  }
  Child(Child&& other) noexcept
      : piece_(other.piece_),
        process_(std::exchange(other.process_, -1)),
        descriptor_(std::exchange(other.descriptor_, -1)),
        rest_(std::move(other.rest_)) {}
  Child& operator=(Child&& other) noexcept {
    std::swap(piece_, other.piece_);
    std::swap(process_, other.process_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(rest_, other.rest_);
    return *this;
  }
  ~Child() {
    if (process_ < 0) return;
    kill(process_, SIGKILL);
    wait();
  }

  [[nodiscard]] int descriptor() const { return descriptor_; }

  /// Passes on what has arrived; false when the process has ended.
  bool read_lines() {
    std::array<char, 65536> buffer;
    const ssize_t count = read(descriptor_, buffer.data(), buffer.size());
    if (count < 0) return errno == EINTR || errno == EAGAIN;
    if (count == 0) return false;
    rest_.append(buffer.data(), static_cast<std::size_t>(count));
    for (std::size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
      const std::string line = rest_.substr(0, end);
      rest_.erase(0, end + 1);
      if (!line.empty() && line[0] == kFailed) throw std::runtime_error(line.substr(1));
      piece_->take(line);
    }
    return true;
  }

  /// After its last line: throws unless it ended well.
  void finish() {
    const int status = wait();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    check_interrupt();
    throw std::runtime_error(
        WIFSIGNALED(status)
            ? fmt::format("a run was ended by signal {}; if memory was short, use fewer --jobs",
                          WTERMSIG(status))
            : fmt::format("a run ended with code {}", WEXITSTATUS(status)));
  }

 private:
  int wait() {
    int status = 0;
    while (waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
    return status;
  }

  const Piece* piece_;
  pid_t process_ = -1;
  int descriptor_ = -1;
  std::string rest_;
};

}  // namespace

void run_in_processes(const std::vector<Piece>& pieces, std::size_t jobs, const std::function<void()>& tick) {
  std::vector<Child> children;
  std::size_t next = 0;
  while (next < pieces.size() || !children.empty()) {
    while (next < pieces.size() && children.size() < jobs) children.emplace_back(pieces[next++]);
    std::vector<pollfd> open;
    for (const Child& child : children) open.push_back({child.descriptor(), POLLIN, 0});
    poll(open.data(), open.size(), 100);
    check_interrupt();
    for (std::size_t i = children.size(); i-- > 0;) {
      if (open[i].revents == 0 || children[i].read_lines()) continue;
      children[i].finish();
      children.erase(children.begin() + static_cast<std::ptrdiff_t>(i));
    }
    tick();
  }
}

}  // namespace cdgrab::cli
