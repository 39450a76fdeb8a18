// SPDX-License-Identifier: Apache-2.0
// The commands that train, as cdgrab has them: loading torch takes most of a second, so they are in a
// program of their own beside this one, which goes on under the same process id.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "cdgrab/error.hpp"
#include "compare_options.hpp"
#include "simulate/simulate.hpp"
#include "train.hpp"

namespace cdgrab::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void hand_over(std::vector<std::string> words) {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "cdgrab-train";
  if (!fs::exists(program, ignored))
    throw UserError(words.at(1),
                    fmt::format("this cdgrab was built without LibTorch: there is no \"{}\"; build it with "
                                "`make build`, or with CMake's -DCDGRAB_BUILD_TORCH=ON",
                                program.string()));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  throw FileError(words.at(1), fmt::format("cannot start \"{}\": {}; build cdgrab again", program.string(),
                                           std::strerror(errno)));
}

}  // namespace

void run_train(const TrainOptions& options) { hand_over(options.words); }
void run_compare(const CompareOptions& options) { hand_over(options.words); }
SimulateResult simulate_training(const SimulateOptions& options, const LaneDone& /*done*/) {
  hand_over(options.words);
}

}  // namespace cdgrab::cli
