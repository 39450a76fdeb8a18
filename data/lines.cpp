// SPDX-License-Identifier: Apache-2.0
#include "data/lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <system_error>

namespace cdgrab::data {
namespace {

constexpr std::size_t kFirstBuffer = std::size_t{1} << 16U;
constexpr std::size_t kMaxLine = std::size_t{1} << 24U;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kSpace = " \t\r\v\f";

}  // namespace

Lines::Lines(const std::filesystem::path& path, std::string_view where)
    : file_(path, where), buffer_(kFirstBuffer) {
  read_more();
  if (std::ranges::equal(
          std::span(buffer_).first(std::min(end_, kByteOrderMark.size())), kByteOrderMark,
          [](std::uint8_t byte, char mark) { return byte == static_cast<std::uint8_t>(mark); })) {
    begin_ = kByteOrderMark.size();
    next_offset_ = begin_;
  }
}

std::optional<std::string_view> Lines::next() {
  std::size_t searched = 0;
  while (true) {
    const std::size_t present = end_ - begin_;
    const std::uint8_t* start = buffer_.data() + begin_;
    if (const void* found = std::memchr(start + searched, '\n', present - searched)) {
      const auto length = static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - start);
      return take(length, length + 1);
    }
    if (ended_) return present == 0 ? std::nullopt : std::optional(take(present, present));
    searched = present;
    read_more();
  }
}

// What has not been given out moves to the front; a buffer full of one line doubles.
void Lines::read_more() {
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
            buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
  end_ -= begin_;
  begin_ = 0;
  if (end_ == kMaxLine) {
    file_.fail(
        fmt::format("line {}: longer than {} bytes, the most that is allowed: name a text file with lines",
                    number_ + 1, kMaxLine));
  }
  if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
  const std::span<std::uint8_t> free = std::span(buffer_).subspan(end_);
  const std::size_t count = file_.read(free);
  end_ += count;
  ended_ = count < free.size();
}

std::string_view Lines::take(std::size_t length, std::size_t with_end) {
  std::string_view line(reinterpret_cast<const char*>(buffer_.data() + begin_), length);
  if (line.ends_with('\r')) line.remove_suffix(1);
  begin_ += with_end;
  offset_ = next_offset_;
  next_offset_ += with_end;
  ++number_;
  return line;
}

void Lines::fail(std::string_view problem) const { file_.fail(fmt::format("line {}: {}", number_, problem)); }

std::string_view take_word(std::string_view& rest) {
  const std::size_t begin = std::min(rest.find_first_not_of(kSpace), rest.size());
  const std::size_t end = std::min(rest.find_first_of(kSpace, begin), rest.size());
  const std::string_view word = rest.substr(begin, end - begin);
  rest.remove_prefix(end);
  return word;
}

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  text.remove_suffix(text.size() - (text.find_last_not_of(kSpace) + 1));
  return text;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kExcerpt = 40;
  return fmt::format("{:?}{}", text.substr(0, kExcerpt), text.size() > kExcerpt ? ".." : "");
}

// from_chars takes no plus sign.
std::optional<double> parse_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

ParsedFloat parse_float(std::string_view text) {
  const std::optional<double> value = parse_number(text);
  if (!value) return {0, "not a number that fits in a float64"};
  if (!std::isfinite(*value)) return {0, "not finite"};
  if (std::abs(*value) > std::numeric_limits<float>::max()) return {0, "too large for a float32"};
  return {static_cast<float>(*value), {}};
}

}  // namespace cdgrab::data
