// SPDX-License-Identifier: Apache-2.0
#include "data/folder.hpp"

#include <system_error>

namespace cdgrab::data {

namespace fs = std::filesystem;

std::optional<fs::path> find_plain_or_gz(const fs::path& folder, const std::string& name) {
  std::error_code ignored;
  for (const char* ending : {"", ".gz"}) {
    fs::path path = folder / (name + ending);
    if (fs::exists(path, ignored)) return path;
  }
  return std::nullopt;
}

}  // namespace cdgrab::data
