// SPDX-License-Identifier: Apache-2.0
#include "data/m4.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cdgrab/error.hpp"
#include "data/lines.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;

// The fields of one line, without their quotes.
class Fields {
 public:
  Fields(std::string_view line, const Lines& lines) : rest_(line), lines_(lines) {}

  std::optional<std::string_view> next() {
    if (done_) return std::nullopt;
    ++column_;
    rest_ = trimmed(rest_);
    const bool quoted = rest_.starts_with('"');
    const std::string_view field = take(quoted ? end_of_quoted() : rest_.find(','));
    return quoted ? field.substr(1, field.size() - 2) : field;
  }

  [[noreturn]] void fail(std::string_view problem) const {
    lines_.fail(fmt::format("column {}: {}", column_, problem));
  }

  [[nodiscard]] std::size_t column() const { return column_; }

 private:
  [[nodiscard]] std::size_t end_of_quoted() const {
    const std::size_t quote = rest_.find('"', 1);
    const std::size_t end = quote == std::string_view::npos ? quote : quote + 1;
    if (end == std::string_view::npos || (end < rest_.size() && rest_[end] != ',')) {
      fail(fmt::format(
          "{}: a quote that does not end with the field; allowed are fields with a quote at both ends "
          "or at none: mend the line",
          in_quotes(rest_)));
    }
    return end;
  }

  std::string_view take(std::size_t end) {
    const std::string_view field = rest_.substr(0, end);
    done_ = field.size() == rest_.size();
    rest_.remove_prefix(done_ ? rest_.size() : field.size() + 1);
    return trimmed(field);
  }

  std::string_view rest_;
  const Lines& lines_;
  std::size_t column_ = 0;
  bool done_ = false;
};

class M4Parser {
 public:
  explicit M4Parser(const fs::path& path) : lines_(path, "read_m4") {}

  std::vector<Series> parse() {
    parse_header();
    while (const std::optional<std::string_view> line = lines_.next()) {
      if (!trimmed(*line).empty()) parse_series(*line);
    }
    if (series_.empty()) {
      lines_.fail_file("no series after the header; at least one is needed: copy the file again");
    }
    return std::move(series_);
  }

 private:
  void parse_header() {
    const std::optional<std::string_view> line = lines_.next();
    if (!line) lines_.fail_file("empty; a csv file of M4 has a header: copy the file again");
    Fields fields(*line, lines_);
    const std::string_view first = *fields.next();
    if (first != "V1") {
      fields.fail(
          fmt::format("the header begins with {}; allowed is \"V1\", as in the csv files of M4: name one",
                      in_quotes(first)));
    }
    while (fields.next()) continue;
    columns_ = fields.column();
  }

  void parse_series(std::string_view line) {
    Fields fields(line, lines_);
    Series series{std::string(*fields.next()), {}};
    if (series.name.empty()) fields.fail("no name; a series begins with one: mend the line");
    if (!names_.insert(series.name).second) {
      fields.fail(fmt::format("a second series {}; a name is allowed once: rename or drop one",
                              in_quotes(series.name)));
    }
    parse_values(fields, series.values);
    if (series.values.empty()) {
      lines_.fail(fmt::format("series {} has no value; at least one is needed: drop the line",
                              in_quotes(series.name)));
    }
    series_.push_back(std::move(series));
  }

  void parse_values(Fields& fields, std::vector<float>& values) const {
    std::size_t empty = 0;
    while (const std::optional<std::string_view> field = fields.next()) {
      if (fields.column() > columns_) {
        fields.fail(
            fmt::format("the line is longer than the header, which has {} columns; at most as many are "
                        "allowed: copy the file again",
                        columns_));
      }
      if (field->empty()) {
        if (empty == 0) empty = fields.column();
        continue;
      }
      if (empty != 0) {
        fields.fail(
            fmt::format("value {} after the empty column {}; empty ones are allowed at the end only: "
                        "fill the gap or drop the series",
                        in_quotes(*field), empty));
      }
      const auto [value, problem] = parse_float(*field);
      if (!problem.empty()) {
        fields.fail(
            fmt::format("{} is {}; allowed are finite numbers: mend the line", in_quotes(*field), problem));
      }
      values.push_back(value);
    }
  }

  Lines lines_;
  std::size_t columns_ = 0;
  std::vector<Series> series_;
  std::unordered_set<std::string> names_;
};

[[noreturn]] void fail(const fs::path& path, std::string_view problem) {
  throw FileError("read_m4_folder", fmt::format("\"{}\": {}", path.string(), problem));
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    names.insert(it->path().filename().string());
  }
  if (code) {
    fail(folder, fmt::format("cannot be listed: {} (error {}); name a folder with two csv files of M4",
                             code.message(), code.value()));
  }
  return names;
}

// The one file of `names` that ends so, or so and with .gz; beside a plain one, its .gz does not count.
fs::path find_one(const fs::path& folder, const std::set<std::string>& names, const std::string& ending) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const bool gz = name.ends_with(".gz");
    const std::string plain = gz ? name.substr(0, name.size() - 3) : name;
    if (plain.ends_with(ending) && !(gz && names.contains(plain))) found.push_back(name);
  }
  if (found.size() != 1) {
    fail(folder,
         fmt::format("{} files named *{} or *{}.gz{}{}; exactly one is allowed: name a folder with the "
                     "two files of one frequency of M4",
                     found.size(), ending, ending, found.empty() ? "" : ": ", fmt::join(found, ", ")));
  }
  return folder / found.front();
}

std::vector<Series> in_order_of(const std::vector<Series>& train, std::vector<Series> test,
                                const fs::path& path) {
  std::unordered_map<std::string_view, Series*> by_name;
  for (Series& series : test) by_name.emplace(series.name, &series);
  std::vector<Series> ordered;
  for (const Series& series : train) {
    const auto found = by_name.find(series.name);
    if (found == by_name.end()) {
      fail(path,
           fmt::format("no series {}; allowed are the series of the training file: copy both files again",
                       in_quotes(series.name)));
    }
    Series* partner = found->second;
    by_name.erase(found);  // before the name it is found by moves away
    ordered.push_back(std::move(*partner));
  }
  if (!by_name.empty()) {
    fail(path, fmt::format("series {}, which the training file does not have; allowed are its series: copy "
                           "both files again",
                           in_quotes(by_name.begin()->first)));
  }
  return ordered;
}

}  // namespace

std::vector<Series> read_m4(const fs::path& path) { return M4Parser(path).parse(); }

SeriesSplits read_m4_folder(const fs::path& folder) {
  const std::set<std::string> names = names_in(folder);
  const fs::path train_path = find_one(folder, names, "-train.csv");
  const fs::path test_path = find_one(folder, names, "-test.csv");
  SeriesSplits splits{read_m4(train_path), {}};
  splits.test = in_order_of(splits.train, read_m4(test_path), test_path);
  return splits;
}

}  // namespace cdgrab::data
