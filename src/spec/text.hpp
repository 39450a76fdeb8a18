// SPDX-License-Identifier: Apache-2.0
// The words and numbers of a spec: cut out, read, printed, refused.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cdgrab/error.hpp"
#include "cdgrab/nearest.hpp"
#include "cdgrab/permutation.hpp"

namespace cdgrab::detail {

[[noreturn]] inline void refuse(const std::string& message) { throw UserError("spec", message); }

/// Text from outside, fit for one line of a message.
inline std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 60;
  std::string out = "`";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out.push_back(c);
    } else {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    }
  }
  return out + (text.size() > kShown ? "...`" : "`");
}

inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

inline std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const std::size_t end = text.find_first_of(separators);
    pieces.push_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

[[noreturn]] inline void refuse_word(std::string_view kind, std::string_view word,
                                     std::span<const std::string_view> allowed) {
  refuse(fmt::format("unknown {} {}; the nearest is `{}`; allowed: {}", kind, in_quotes(word),
                     nearest_word(word, allowed), fmt::join(allowed, ", ")));
}

/// One option as written; a bare word has no value.
struct Field {
  std::string_view key;
  std::string_view value;
};

template <class E>
struct Word {
  std::string_view word;
  E value;
};

template <class E, std::size_t N>
E parse_word(const Field& field, std::string_view value, const std::array<Word<E>, N>& words) {
  std::array<std::string_view, N> allowed;
  for (std::size_t i = 0; i < N; ++i) {
    if (words[i].word == value) return words[i].value;
    allowed[i] = words[i].word;
  }
  refuse_word(fmt::format("value of `{}`:", field.key), value, allowed);
}

/// Empty for a value that no word names.
template <class E, std::size_t N>
inline std::string print_word(E value, const std::array<Word<E>, N>& words) {
  const auto found =
      std::find_if(words.begin(), words.end(), [&](const Word<E>& w) { return w.value == value; });
  return found == words.end() ? "" : std::string(found->word);
}

inline std::size_t parse_count(const Field& field, std::string_view value, std::size_t least,
                               std::size_t most = kMaxExamples) {
  std::size_t count = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
  if (error != std::errc{} || end != value.data() + value.size() || count < least || count > most) {
    refuse(fmt::format("`{}` is {}; it must be a whole number from {} to {}", field.key, in_quotes(value),
                       least, most));
  }
  return count;
}

inline double parse_number(const Field& field, bool (*allowed)(double), std::string_view range) {
  const std::string_view value = field.value;
  double number = 0.0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || !std::isfinite(number) ||
      !allowed(number)) {
    refuse(fmt::format("`{}` is {}; it must be a number {}", field.key, in_quotes(value), range));
  }
  return number + 0.0;  // -0 becomes 0
}

inline std::string print_number(double number) {
  std::array<char, 32> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), error == std::errc{} ? end : text.data()};
}

inline bool inside_unit(double x) { return x > 0.0 && x < 1.0; }

}  // namespace cdgrab::detail
