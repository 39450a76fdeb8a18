// SPDX-License-Identifier: Apache-2.0
// A text file, gzipped or plain, one line at a time; and the words and numbers in a line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/gz_file.hpp"

namespace cdgrab::data {

class Lines {
 public:
  /// A byte order mark of UTF-8 is skipped. Throws FileError as GzFile does.
  Lines(const std::filesystem::path& path, std::string_view where);

  /// The next line without its end, LF or CRLF; nothing after the last one. It is good until the next
  /// call. Throws FileError where the file is damaged, and for a line of more than 16 MiB.
  std::optional<std::string_view> next();

  /// Of the line that next() gave last: its number, from 1, and where it begins in the content.
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::uint64_t offset() const { return offset_; }

  /// Throws the FileError that says `problem` of that line.
  [[noreturn]] void fail(std::string_view problem) const;
  /// .. of the file as a whole.
  [[noreturn]] void fail_file(std::string_view problem) const { file_.fail(problem); }

 private:
  void read_more();
  std::string_view take(std::size_t length, std::size_t with_end);

  GzFile file_;
  std::vector<std::uint8_t> buffer_;
  std::size_t begin_ = 0;  ///< of what has not been given out, inside the buffer
  std::size_t end_ = 0;
  bool ended_ = false;
  std::uint64_t number_ = 0;
  std::uint64_t offset_ = 0;
  std::uint64_t next_offset_ = 0;
};

/// Takes the first word off `rest`, with the white space before it; empty when there is none left.
std::string_view take_word(std::string_view& rest);

/// Without the white space at both ends.
std::string_view trimmed(std::string_view text);

/// Quoted, escaped and cut, for a message.
std::string in_quotes(std::string_view text);

/// All of `text` as a decimal number, with a sign or without, infinities and NaN included; nothing if it
/// is anything else or does not fit in a float64.
std::optional<double> parse_number(std::string_view text);

/// `text` as a number for a float32, or what is wrong with it, in words.
struct ParsedFloat {
  float value = 0;
  std::string_view problem;
};
ParsedFloat parse_float(std::string_view text);

}  // namespace cdgrab::data
