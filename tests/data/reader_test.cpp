// SPDX-License-Identifier: Apache-2.0
// What holds for every reader of one file, gzipped or plain.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "data/cifar10.hpp"
#include "data/files.hpp"
#include "data/libsvm.hpp"
#include "data/m4.hpp"
#include "data/text.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;
using test::read_text;
using test::TempFolder;
using test::write_gz;
using test::write_text;

struct Case {
  std::string name;
  std::string sound;
  std::function<std::size_t(const fs::path&)> count;  // of examples, series or tokens

  friend void PrintTo(const Case& reader, std::ostream* out) { *out << reader.name; }
};

std::string varied(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t k = 0; k < size; ++k) bytes[k] = static_cast<char>(k * k);
  return bytes;
}

const Case kCases[] = {
    {"cifar10", "\x03" + varied(3072),
     [](const fs::path& path) { return read_cifar10_batch(path).labels.values.size(); }},
    {"libsvm", "1 1:0.5 7:2\n-1 2:1e-3\n",
     [](const fs::path& path) { return read_libsvm(path).label.size(); }},
    {"m4", "\"V1\",\"V2\",\"V3\"\n\"W1\",\"1.5\",\"\"\n",
     [](const fs::path& path) { return read_m4(path).size(); }},
    {"text", "one word\nand another\n",
     [](const fs::path& path) {
       return data::read_text({path, {}}).train.size();
     }},
};

class Reader : public testing::TestWithParam<Case> {
 protected:
  void expect_refused(const std::string& part) const {
    test::expect_refused(path_, part, [&] { return GetParam().count(path_); });
  }

  TempFolder folder_;
  fs::path path_ = folder_ / "a file";
};

TEST_P(Reader, ReadsPlainAndGzippedTheSame) {
  write_text(path_, GetParam().sound);
  const std::size_t count = GetParam().count(path_);
  EXPECT_GT(count, 0U);
  write_gz(path_, GetParam().sound);
  EXPECT_EQ(GetParam().count(path_), count);
}

TEST_P(Reader, RefusesWhatIsNoRegularFile) {
  expect_refused("cannot be opened: No such file or directory (error 2); check the path");
  fs::create_directory(path_);
  expect_refused("a directory; only a regular file is allowed");
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect_refused("not a regular file");
}

TEST_P(Reader, RefusesAnEmptyFile) {
  write_text(path_, "");
  expect_refused("");
}

TEST_P(Reader, RefusesAGzipCutAnywhere) {
  write_gz(path_, GetParam().sound);
  const std::string whole = read_text(path_);
  for (std::size_t length = 2; length < whole.size(); ++length) {  // by the first two bytes it is known
    write_text(path_, whole.substr(0, length));
    EXPECT_THROW(static_cast<void>(GetParam().count(path_)), FileError) << length << " of " << whole.size();
  }
  expect_refused("truncated: the gzip data break off after");
}

TEST_P(Reader, RefusesAGzipWithAWrongChecksum) {
  write_gz(path_, GetParam().sound);
  std::string whole = read_text(path_);
  whole[whole.size() - 8] = static_cast<char>(whole[whole.size() - 8] + 1);
  write_text(path_, whole);
  expect_refused("damaged: incorrect data check in the gzip data");
}

INSTANTIATE_TEST_SUITE_P(All, Reader, testing::ValuesIn(kCases),
                         [](const auto& reader) { return reader.param.name; });

}  // namespace
}  // namespace cdgrab::data
