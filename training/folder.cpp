// SPDX-License-Identifier: Apache-2.0
#include "training/folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "cdgrab/error.hpp"

namespace cdgrab::training {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string_view flag, std::string_view action, const fs::path& path, int code) {
  throw FileError(flag, fmt::format("cannot {} \"{}\": {}; choose another place or free this one", action,
                                    path.string(), std::strerror(code)));
}

std::string line_of(const Run& run, const EpochRecord& record) {
  return to_json(record, run.facts().metric).dump() + "\n";
}

}  // namespace

RunFolder::RunFolder(fs::path path) : path_(std::move(path)) {}

RunFolder RunFolder::create(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!fs::is_directory(path)) fail("--out", "make the folder", path, error ? error.value() : ENOTDIR);
  if (access(path.c_str(), W_OK | X_OK) != 0) fail("--out", "write to the folder", path, errno);
  RunFolder folder(path);
  if (fs::exists(folder.checkpoint()) || fs::exists(folder.metrics()))
    throw UserError("--out",
                    fmt::format("there is a run in \"{}\"; go on with it by --resume, or name another "
                                "folder",
                                path.string()));
  return folder;
}

RunFolder RunFolder::reopen(const fs::path& path) {
  std::error_code ignored;
  RunFolder folder(path);
  if (!fs::exists(folder.checkpoint(), ignored))
    throw FileError("--resume", fmt::format("there is no \"{}\"; name a folder that --out was given before",
                                            folder.checkpoint().string()));
  if (access(path.c_str(), W_OK | X_OK) != 0) fail("--resume", "write to the folder", path, errno);
  return folder;
}

void RunFolder::save(const State& state) const { save_state(state, checkpoint()); }

State RunFolder::load() const { return load_state(checkpoint()); }

void RunFolder::append(const Run& run) const {
  std::ofstream file(metrics(), std::ios::app | std::ios::binary);
  file << line_of(run, run.records().back()) << std::flush;
  if (!file) fail("metrics", "write", metrics(), errno);
}

void RunFolder::rewrite(const Run& run) const {
  const fs::path beside = path_ / ".cdgrab-metrics.tmp";
  {
    std::ofstream file(beside, std::ios::binary);
    for (const EpochRecord& record : run.records()) file << line_of(run, record);
    file.flush();
    if (!file) fail("metrics", "write", beside, errno);
  }
  std::error_code error;
  fs::rename(beside, metrics(), error);
  if (error) fail("metrics", "replace", metrics(), error.value());
}

}  // namespace cdgrab::training
