// SPDX-License-Identifier: Apache-2.0
#include "io/file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "cdgrab/error.hpp"
#include "temp_folder.hpp"

namespace cdgrab::io {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::read_text;
using test::TempFolder;
using test::write_text;

void write(const fs::path& path, const std::string& first, const std::string& second = {}) {
  const std::array parts{std::as_bytes(std::span(first)), std::as_bytes(std::span(second))};
  write_atomically(path, parts, "test");
}

// Writes fail with EFBIG beyond a few bytes, for any user, while one of these lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_{};
  void (*handler_)(int);
};

TEST(File, PartsAreWrittenOneAfterTheOther) {
  const TempFolder folder;
  write(folder / "a", "one", "two");
  EXPECT_EQ(read_text(folder / "a"), "onetwo");
  write(folder / "a", "");
  EXPECT_EQ(read_text(folder / "a"), "");
  EXPECT_EQ(folder.count(), 1U);
}

TEST(File, ReadGivesBackWhatWasWritten) {
  const TempFolder folder;
  const std::string text(100'001, 'x');
  write(folder / "a", text);
  const std::vector<std::byte> bytes = read_file(folder / "a", "test");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), text);
  write(folder / "b", "");
  EXPECT_TRUE(read_file(folder / "b", "test").empty());
}

TEST(File, AFailedWriteLeavesTheOldFileAndNoOther) {
  const TempFolder folder;
  write(folder / "a", "old");
  {
    const FileSizeLimit limit(1000);
    const std::string message = message_of<FileError>([&] { write(folder / "a", std::string(5000, 'x')); });
    EXPECT_NE(message.find((folder / "a").string()), std::string::npos) << message;
    EXPECT_NE(message.find("File too large"), std::string::npos) << message;
    EXPECT_NE(message.find("free some space"), std::string::npos) << message;
  }
  EXPECT_EQ(read_text(folder / "a"), "old");
  EXPECT_EQ(folder.count(), 1U);
}

/// A process that begins to write and is killed in the middle.
void die_writing(const fs::path& path) {
  const pid_t child = fork();
  if (child == 0) {
    const FileSizeLimit limit(1000);
    std::signal(SIGXFSZ, SIG_DFL);  // ends it there, with nothing tidied up
    write(path, std::string(5000, 'x'));
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(File, AKilledWriterLeavesTheOldFileAndTheNextOneTidiesUp) {
  const TempFolder folder;
  write(folder / "a", "old");
  for (int i = 0; i < 5; ++i) die_writing(folder / "a");
  EXPECT_EQ(read_text(folder / "a"), "old");
  EXPECT_EQ(folder.count(), 2U) << "the file, and one half";
  write(folder / "b", "new");
  EXPECT_EQ(read_text(folder / "b"), "new");
  EXPECT_EQ(folder.count(), 2U);
}

TEST(File, AKilledWritersReadOnlyHalfIsTidiedUpToo) {
  const TempFolder folder;
  write(folder / "a", "old");
  fs::permissions(folder / "a", fs::perms::owner_read);
  for (int i = 0; i < 3; ++i) die_writing(folder / "a");
  write(folder / "a", "new");
  EXPECT_EQ(read_text(folder / "a"), "new");
  EXPECT_EQ(folder.count(), 1U);
}

TEST(File, ManyWritersAtOnceDoNotTakeEachOthersFiles) {
  const TempFolder folder;
  std::vector<std::thread> writers;
  for (const char name : {'a', 'b', 'c', 'd'})
    writers.emplace_back([&folder, name] {
      for (std::size_t i = 0; i < 100; ++i) write(folder / std::string(1, name), std::string(i, name));
      write(folder / "of all", std::string(99, name));
    });
  for (std::thread& writer : writers) writer.join();
  for (const char name : {'a', 'b', 'c', 'd'})
    EXPECT_EQ(read_text(folder / std::string(1, name)), std::string(99, name));
  EXPECT_EQ(folder.count(), 5U);
}

TEST(File, ADirectoryOrDeviceIsNeverReplaced) {
  const TempFolder folder;
  fs::create_directory(folder / "d");
  EXPECT_NE(message_of<FileError>([&] { write(folder / "d", "x"); }).find("a directory"), std::string::npos);
  EXPECT_TRUE(fs::is_directory(folder / "d"));
  EXPECT_THROW(write("/dev/null", "x"), FileError);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(folder.count(), 1U);
}

TEST(File, AMissingFolderIsAnErrorWithTheRemedy) {
  const TempFolder folder;
  const std::string message = message_of<FileError>([&] { write(folder / "no/such/a", "x"); });
  EXPECT_NE(message.find("[test] cannot write"), std::string::npos) << message;
  EXPECT_NE(message.find("No such file or directory"), std::string::npos) << message;
  EXPECT_NE(message.find("folders are not created"), std::string::npos) << message;
}

TEST(File, TheLongestNameCanBeWritten) {
  const TempFolder folder;
  write(folder / std::string(255, 'n'), "x");
  EXPECT_EQ(folder.count(), 1U);
  EXPECT_THROW(write(folder / std::string(256, 'n'), "x"), FileError);
  EXPECT_EQ(folder.count(), 1U);
}

TEST(File, ALinkStaysALinkAndPermissionsStay) {
  const TempFolder folder;
  write(folder / "target", "old");
  fs::permissions(folder / "target", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("target", folder / "link");
  write(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_text(folder / "target"), "new");
  EXPECT_EQ(fs::status(folder / "target").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(File, ANameWithoutAFolderIsWrittenHere) {
  const TempFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  write("a", "x");
  fs::current_path(before);
  EXPECT_EQ(read_text(folder / "a"), "x");
}

TEST(File, OnlyRegularFilesAreRead) {
  const TempFolder folder;
  EXPECT_NE(message_of<FileError>([&] { read_file(folder / "none", "test"); }).find("No such file"),
            std::string::npos);
  EXPECT_NE(message_of<FileError>([&] { read_file(folder.path(), "test"); }).find("a directory"),
            std::string::npos);
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_file(folder / "pipe", "test"), FileError);
}

TEST(File, AFileThatShrinksWhileBeingReadIsAnError) {
  const TempFolder folder;
  write(folder / "a", std::string(100, 'x'));
  const InputFile file(folder / "a", "test");
  EXPECT_EQ(file.size(), 100U);
  fs::resize_file(folder / "a", 60);
  std::vector<std::byte> bytes(100);
  EXPECT_NE(message_of<FileError>([&] { file.read_at(0, bytes); }).find("ends after 60 bytes"),
            std::string::npos);
  EXPECT_NO_THROW(file.read_at(10, std::span(bytes).first(50)));
  EXPECT_THROW(file.read_at(1000, bytes), FileError);
}

}  // namespace
}  // namespace cdgrab::io
