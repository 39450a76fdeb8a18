// SPDX-License-Identifier: Apache-2.0
#include "subprocess.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <stdexcept>

namespace cdgrab::test {
namespace {

using Pipe = std::array<int, 2>;

[[noreturn]] void exec_in_child(const std::vector<std::string>& command, const RunOptions& options,
                                const Pipe& out, const Pipe& err) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  if (chdir(options.folder.c_str()) == 0 && dup2(out[1], STDOUT_FILENO) >= 0 &&
      dup2(err[1], STDERR_FILENO) >= 0) {
    execvp(argv[0], argv.data());
  }
  _exit(127);
}

/// Appends what is there to `text`; false at the end of the stream.
bool drain(int descriptor, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t count = read(descriptor, buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0 || (count < 0 && errno == EINTR);
}

void collect(pid_t child, int out, int err, const RunOptions& options, Outcome& outcome) {
  const auto deadline = std::chrono::steady_clock::now() + options.limit;
  bool signalled = false;
  std::array<pollfd, 2> open = {pollfd{out, POLLIN, 0}, pollfd{err, POLLIN, 0}};
  while (open[0].fd >= 0 || open[1].fd >= 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(child, SIGKILL);
      throw std::runtime_error("the program did not end in time");
    }
    poll(open.data(), open.size(), 100);
    if (open[0].revents != 0 && !drain(out, outcome.out)) open[0].fd = -1;
    if (open[1].revents != 0 && !drain(err, outcome.err)) open[1].fd = -1;
    if (options.signal && !signalled && outcome.out.find(options.after) != std::string::npos) {
      kill(child, *options.signal);
      signalled = true;
    }
  }
}

}  // namespace

Outcome run_program(const std::vector<std::string>& command, const RunOptions& options) {
  Pipe out;
  Pipe err;
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0)
    throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) exec_in_child(command, options, out, err);
  close(out[1]);
  close(err[1]);
  Outcome outcome;
  collect(child, out[0], err[0], options, outcome);
  close(out[0]);
  close(err[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

}  // namespace cdgrab::test
