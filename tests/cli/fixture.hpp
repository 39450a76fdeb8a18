// SPDX-License-Identifier: Apache-2.0
// What tests of the command have in common.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "subprocess.hpp"

namespace cdgrab::test {

namespace fs = std::filesystem;

inline bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

inline std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// The program, or nothing if there is none.
inline std::string find_chromium() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    if (run_program({"sh", "-c", std::string("command -v ") + name}).exit_code == 0) return name;
  }
  return "";
}

/// What the page is once loaded on stdout, and what it complains of on stderr.
inline Outcome load_in_browser(const std::string& chromium, const fs::path& page, const fs::path& profile) {
  return run_program({chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                      "--user-data-dir=" + profile.string(), "--dump-dom", "file://" + page.string()});
}

/// Each test works in a folder of its own.
class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cdgrab_cli_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    std::error_code ignored;
    fs::permissions(folder_ / "locked", fs::perms::owner_all, ignored);
    fs::remove_all(folder_, ignored);
  }

  [[nodiscard]] fs::path in(const std::string& name) const { return folder_ / name; }

  Outcome run(std::vector<std::string> arguments, RunOptions options = {}) const {
    arguments.insert(arguments.begin(), CDGRAB_CLI_PATH);
    options.folder = folder_;
    return run_program(arguments, options);
  }

  /// Fails with this code, says why on stderr and nothing on stdout.
  void expect_failure(int code, const std::vector<std::string>& arguments, std::string_view message) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, code) << outcome.err;
    EXPECT_TRUE(has(outcome.err, message)) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }

  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }

  fs::path folder_;
};

}  // namespace cdgrab::test
