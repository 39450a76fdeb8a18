// SPDX-License-Identifier: Apache-2.0
#include "data/libsvm.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "data/labels.hpp"
#include "data/lines.hpp"

namespace cdgrab::data {
namespace {

constexpr std::uint64_t kMaxIndex = 100'000'000;
constexpr double kMaxLabel = 0x1p53;  // up to here a float64 tells whole numbers apart

std::string first_of(const std::vector<std::int64_t>& names) {
  constexpr std::size_t kShown = 10;
  return fmt::format("{}{}", fmt::join(std::span(names).first(std::min(kShown, names.size())), ", "),
                     names.size() > kShown ? " .." : "");
}

class LibsvmParser {
 public:
  LibsvmParser(const std::filesystem::path& path, const SparseExamples* like)
      : lines_(path, "read_libsvm"), like_(like) {}

  SparseExamples parse() {
    examples_.begin.push_back(0);
    while (const std::optional<std::string_view> line = lines_.next()) parse_line(*line);
    if (labels_.empty()) {
      lines_.fail_file("no example in it; allowed are lines \"label index:value ..\": name another file");
    }
    settle_dim();
    settle_labels();
    return std::move(examples_);
  }

 private:
  void parse_line(std::string_view line) {
    std::string_view rest = line.substr(0, line.find('#'));
    const std::string_view label = take_word(rest);
    if (label.empty()) return;
    labels_.push_back(parse_label(label));
    std::uint64_t last = 0;
    for (std::string_view entry = take_word(rest); !entry.empty(); entry = take_word(rest)) {
      last = parse_entry(entry, last);
    }
    largest_ = std::max(largest_, last);
    examples_.begin.push_back(examples_.column.size());
  }

  [[nodiscard]] std::int64_t parse_label(std::string_view word) const {
    const std::optional<double> number = parse_number(word);
    if (!number) {
      lines_.fail(
          fmt::format("{} where the label belongs; allowed is one whole number per line, before its "
                      "entries index:value: write such a file",
                      in_quotes(word)));
    }
    if (*number != std::trunc(*number) || std::abs(*number) > kMaxLabel) {
      lines_.fail(
          fmt::format("label {} is not a whole number, as in files for regression; allowed are the "
                      "labels of classes, such as -1 and 1: name a file for classification",
                      in_quotes(word)));
    }
    const auto label = static_cast<std::int64_t>(*number);
    if (like_ != nullptr && !std::ranges::binary_search(like_->label_names, label)) {
      lines_.fail(
          fmt::format("label {}; allowed are the labels of the training file, {}: name a file that "
                      "belongs to it",
                      label, first_of(like_->label_names)));
    }
    return label;
  }

  // The index.
  std::uint64_t parse_entry(std::string_view entry, std::uint64_t last) {
    const std::size_t colon = entry.find(':');
    if (entry.starts_with("qid:")) {
      lines_.fail(
          fmt::format("{} is of files for ranking; allowed are entries index:value: name a file for "
                      "classification",
                      in_quotes(entry)));
    }
    if (colon == std::string_view::npos) fail_entry(entry, "no entry index:value");
    const std::uint64_t index = parse_index(entry, entry.substr(0, colon));
    if (index <= last) {
      lines_.fail(
          fmt::format("index {} after index {}; indices are allowed to ascend only: sort the entries of "
                      "each line, each index once",
                      index, last));
    }
    const auto [value, problem] = parse_float(entry.substr(colon + 1));
    if (!problem.empty()) fail_entry(entry, fmt::format("the value is {}", problem));
    examples_.column.push_back(static_cast<std::uint32_t>(index - 1));
    examples_.value.push_back(value);
    return index;
  }

  [[nodiscard]] std::uint64_t parse_index(std::string_view entry, std::string_view digits) const {
    std::uint64_t index = 0;
    const char* end = digits.data() + digits.size();
    const auto [stopped, code] = std::from_chars(digits.data(), end, index);
    if (stopped != end || code == std::errc::invalid_argument) {
      fail_entry(entry, "the index is not a whole number");
    }
    const std::uint64_t most = like_ == nullptr ? kMaxIndex : like_->dim;
    const bool low_enough = code == std::errc{} && index <= most;
    if (low_enough && index > 0) return index;
    std::string_view remedy = ": count from 1, add 1 to every index";
    if (!low_enough) {
      remedy = like_ == nullptr ? ": number the features without large gaps"
                                : ", as in the training file: leave the other features out";
    }
    lines_.fail(fmt::format("index {}; allowed are 1..{}{}", digits.substr(0, 24), most, remedy));
  }

  [[noreturn]] void fail_entry(std::string_view entry, std::string_view problem) const {
    lines_.fail(
        fmt::format("{}: {}; allowed is index:value with a whole number from 1 and a finite "
                    "number, without spaces: mend the line",
                    in_quotes(entry), problem));
  }

  void settle_dim() {
    examples_.dim = like_ == nullptr ? static_cast<std::size_t>(largest_) : like_->dim;
    if (examples_.dim == 0) {
      lines_.fail_file("no example of it has an entry index:value; name another file");
    }
  }

  void settle_labels() {
    examples_.label_names = like_ == nullptr ? different_labels(labels_) : like_->label_names;
    if (examples_.label_names.size() > kMaxClasses) {
      lines_.fail_file(
          fmt::format("{} different labels, as in files for regression; at most {} are allowed: name a "
                      "file for classification",
                      examples_.label_names.size(), kMaxClasses));
    }
    examples_.label = places_of(labels_, examples_.label_names);
  }

  Lines lines_;
  const SparseExamples* like_;
  SparseExamples examples_;
  std::vector<std::int64_t> labels_;
  std::uint64_t largest_ = 0;
};

}  // namespace

SparseExamples read_libsvm(const std::filesystem::path& path) { return LibsvmParser(path, nullptr).parse(); }

SparseExamples read_libsvm(const std::filesystem::path& path, const SparseExamples& like) {
  return LibsvmParser(path, &like).parse();
}

}  // namespace cdgrab::data
