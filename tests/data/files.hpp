// SPDX-License-Identifier: Apache-2.0
// What the tests of readers do with files.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "cdgrab/error.hpp"
#include "unit/temp_folder.hpp"

namespace cdgrab::test {

inline void write_gz(const std::filesystem::path& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  const bool written = gzwrite(file, content.data(), static_cast<unsigned>(content.size())) > 0;
  if (gzclose(file) != Z_OK || !written) throw std::runtime_error("cannot write " + path.string());
}

/// `read()` throws a FileError that names `path` and holds `part`.
template <class Read>
void expect_refused(const std::filesystem::path& path, const std::string& part, const Read& read) {
  const auto message = message_of<FileError>([&] { static_cast<void>(read()); });
  EXPECT_NE(message.find("\"" + path.string() + "\""), std::string::npos) << message;
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

/// The folder `name` among the real data; empty if there are none here.
inline std::filesystem::path real_data(const std::string& name) {
  const char* data = std::getenv("CDGRAB_DATA");
  return data == nullptr ? std::filesystem::path() : std::filesystem::path(data) / name;
}

}  // namespace cdgrab::test
