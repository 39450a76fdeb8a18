// SPDX-License-Identifier: Apache-2.0
#include "data/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "cdgrab/error.hpp"
#include "data/folder.hpp"
#include "data/lines.hpp"
#include "data/utf8.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;

struct WordHash : std::hash<std::string_view> {
  using is_transparent = void;
};
using Numbers = std::unordered_map<std::string, std::int32_t, WordHash, std::equal_to<>>;

void require_utf8(std::string_view line, const Lines& lines) {
  const std::size_t good = valid_utf8_bytes(line);
  if (good == line.size()) return;
  lines.fail(
      fmt::format("byte 0x{:02x} at offset {} is not UTF-8, which alone is allowed: convert the file, for "
                  "instance with iconv -t UTF-8",
                  static_cast<unsigned char>(line[good]), lines.offset() + good));
}

// `number_of(word)` of every word.
template <class NumberOf>
std::vector<std::int32_t> read_tokens(const fs::path& path, const NumberOf& number_of) {
  Lines lines(path, "read_text");
  std::vector<std::int32_t> tokens;
  bool any = false;
  while (const std::optional<std::string_view> line = lines.next()) {
    require_utf8(*line, lines);
    std::string_view rest = *line;
    for (std::string_view word = take_word(rest); !word.empty(); word = take_word(rest)) {
      tokens.push_back(number_of(word));
      any = true;
    }
    tokens.push_back(kEndOfLine);
  }
  if (!any) lines.fail_file("not a single word in it; at least one is needed: name another file");
  return tokens;
}

// The words of a training text, numbered as they appear, and then by how often they do.
class Vocabulary {
 public:
  Vocabulary() {
    add("<unk>");
    add("<eos>");
  }

  std::int32_t add(std::string_view word) {
    if (const auto found = numbers_.find(word); found != numbers_.end()) return found->second;
    const auto number = static_cast<std::int32_t>(numbers_.size());
    numbers_.emplace(word, number);
    return number;
  }

  // Keeps the most frequent of `tokens` and gives back, for each number so far, its new one.
  std::vector<std::int32_t> settle(std::span<const std::int32_t> tokens, std::size_t max_words) {
    std::vector<std::size_t> counts(numbers_.size());
    for (const std::int32_t token : tokens) ++counts[static_cast<std::size_t>(token)];
    std::vector<std::int32_t> order(numbers_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin() + 2, order.end(), [&](std::int32_t a, std::int32_t b) {
      return counts[static_cast<std::size_t>(a)] > counts[static_cast<std::size_t>(b)];
    });
    std::vector<std::int32_t> renumbered(numbers_.size(), kUnknownWord);
    for (std::size_t k = 0; k < std::min(max_words, order.size()); ++k) {
      const auto old = static_cast<std::size_t>(order[k]);
      if (k < 2 || counts[old] > 0) renumbered[old] = static_cast<std::int32_t>(k);
    }
    for (auto& [word, number] : numbers_) number = renumbered[static_cast<std::size_t>(number)];
    return renumbered;
  }

  [[nodiscard]] std::int32_t number_of(std::string_view word) const {
    const auto found = numbers_.find(word);
    return found == numbers_.end() ? kUnknownWord : found->second;
  }

  [[nodiscard]] std::vector<std::string> words() const {
    std::vector<std::string> words{"<unk>"};
    for (const auto& [word, number] : numbers_) {
      const auto place = static_cast<std::size_t>(number);
      if (place == kUnknownWord) continue;
      if (words.size() <= place) words.resize(place + 1);
      words[place] = word;
    }
    return words;
  }

 private:
  Numbers numbers_;
};

void require_options(const TextOptions& options) {
  if (options.max_words < 2) {
    throw UserError("read_text", fmt::format("max_words is {}; allowed is 2 or more, for <unk> and <eos> are "
                                             "words: raise it",
                                             options.max_words));
  }
  if (!(options.held_out >= 0 && options.held_out < 1)) {
    throw UserError("read_text", fmt::format("held_out is {}; allowed is 0 or more and less than 1: give the "
                                             "validation text's share",
                                             options.held_out));
  }
}

void renumber(std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& numbers) {
  for (std::int32_t& token : tokens) token = numbers[static_cast<std::size_t>(token)];
}

}  // namespace

TextFiles find_text(const fs::path& file_or_folder) {
  std::error_code ignored;
  if (!fs::is_directory(file_or_folder, ignored)) return {file_or_folder, {}};
  const std::optional<fs::path> train = find_plain_or_gz(file_or_folder, "train.txt");
  const std::optional<fs::path> valid = find_plain_or_gz(file_or_folder, "valid.txt");
  const std::optional<fs::path> test = find_plain_or_gz(file_or_folder, "test.txt");
  if (train) return {*train, valid ? *valid : test.value_or(fs::path())};
  if (valid) return {*valid, test.value_or(fs::path())};
  throw FileError("find_text",
                  fmt::format("\"{}\" has neither \"train.txt\" nor \"valid.txt\", plain or with .gz; "
                              "name a folder that has one of them, or a text file",
                              file_or_folder.string()));
}

Text read_text(const TextFiles& files, const TextOptions& options) {
  require_options(options);
  Text text;
  Vocabulary vocabulary;
  text.train = read_tokens(files.train, [&](std::string_view word) { return vocabulary.add(word); });
  if (files.validation.empty()) {
    const auto held_out = static_cast<std::size_t>(static_cast<double>(text.train.size()) * options.held_out);
    text.validation.assign(text.train.end() - static_cast<std::ptrdiff_t>(held_out), text.train.end());
    text.train.resize(text.train.size() - held_out);
  }
  const std::vector<std::int32_t> numbers = vocabulary.settle(text.train, options.max_words);
  renumber(text.train, numbers);
  renumber(text.validation, numbers);
  if (!files.validation.empty()) {
    text.validation =
        read_tokens(files.validation, [&](std::string_view word) { return vocabulary.number_of(word); });
  }
  text.words = vocabulary.words();
  return text;
}

}  // namespace cdgrab::data
