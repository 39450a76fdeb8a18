// SPDX-License-Identifier: Apache-2.0
#include "data/labelled_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "cdgrab/error.hpp"
#include "cdgrab/npy.hpp"
#include "data/labels.hpp"

namespace cdgrab::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, std::string_view problem) {
  throw FileError("read_npy_pair", fmt::format("\"{}\": {}", path.string(), problem));
}

template <class T>
void require_values(const Matrix<T>& x, const fs::path& path) {
  if (x.rows == 0 || x.dim == 0) {
    fail(path, fmt::format("shape ({}, {}); at least one row of one number is allowed: save the array again",
                           x.rows, x.dim));
  }
  const auto bad = std::ranges::find_if(
      x.values, [](T value) { return !(std::abs(value) <= std::numeric_limits<float>::max()); });
  if (bad != x.values.end()) {
    const auto at = static_cast<std::size_t>(bad - x.values.begin());
    fail(path, fmt::format("{} in row {}, column {} (from 0); allowed are finite numbers that fit in a "
                           "float32: mend or drop the row",
                           *bad, at / x.dim, at % x.dim));
  }
}

LabelledRows rows_of(Matrix<float> x, const fs::path& path) {
  require_values(x, path);
  return {x.dim, std::move(x.values), {}, {}};
}

LabelledRows rows_of(const Matrix<double>& x, const fs::path& path) {
  require_values(x, path);
  std::vector<float> values(x.values.size());
  std::ranges::transform(x.values, values.begin(), [](double value) { return static_cast<float>(value); });
  return {x.dim, std::move(values), {}, {}};
}

void require_known(const std::vector<std::int64_t>& labels, const LabelledRows& like, const fs::path& path) {
  const auto bad = std::ranges::find_if(
      labels, [&](std::int64_t label) { return !std::ranges::binary_search(like.label_names, label); });
  if (bad != labels.end()) {
    fail(path, fmt::format("entry {} is {}; allowed are the {} labels of the training rows, {}..{}: name a "
                           "file that belongs to them",
                           bad - labels.begin(), *bad, like.label_names.size(), like.label_names.front(),
                           like.label_names.back()));
  }
}

LabelledRows read_pair(const fs::path& x, const fs::path& y, const LabelledRows* like) {
  LabelledRows rows =
      std::visit([&](auto&& matrix) { return rows_of(std::move(matrix), x); }, read_npy_matrix(x));
  const std::vector<std::int64_t> labels = read_npy_integers(y);
  const std::size_t count = rows.values.size() / rows.dim;
  if (labels.size() != count) {
    fail(y, fmt::format("{} labels, and {} rows in \"{}\"; one label per row is allowed: save the two again",
                        labels.size(), count, x.string()));
  }
  if (like != nullptr && rows.dim != like->dim) {
    fail(x, fmt::format("rows of {} numbers; allowed are {}, as in the training rows: save the array again",
                        rows.dim, like->dim));
  }
  if (like != nullptr) require_known(labels, *like, y);
  rows.label_names = like == nullptr ? different_labels(labels) : like->label_names;
  if (rows.label_names.size() > kMaxClasses) {
    fail(y, fmt::format("{} different labels; at most {} are allowed: name the labels of classes",
                        rows.label_names.size(), kMaxClasses));
  }
  rows.label = places_of(labels, rows.label_names);
  return rows;
}

void require_file(const fs::path& folder, const char* name, const char* partner) {
  std::error_code ignored;
  if (fs::exists(folder / name, ignored)) return;
  throw FileError("read_npy_pair",
                  fmt::format("\"{}\" has no \"{}\"; a folder is allowed that has \"{}\" and "
                              "\"{}\": save the missing one with numpy.save, not gzipped",
                              folder.string(), name, name, partner));
}

}  // namespace

LabelledRows read_npy_pair(const fs::path& x, const fs::path& y) { return read_pair(x, y, nullptr); }

LabelledRows read_npy_pair(const fs::path& x, const fs::path& y, const LabelledRows& like) {
  return read_pair(x, y, &like);
}

LabelledRows read_npy_folder(const fs::path& folder) {
  require_file(folder, "x.npy", "y.npy");
  require_file(folder, "y.npy", "x.npy");
  return read_npy_pair(folder / "x.npy", folder / "y.npy");
}

std::optional<LabelledRows> read_npy_test(const fs::path& folder, const LabelledRows& like) {
  std::error_code ignored;
  if (!fs::exists(folder / "x_test.npy", ignored) && !fs::exists(folder / "y_test.npy", ignored)) {
    return std::nullopt;
  }
  require_file(folder, "x_test.npy", "y_test.npy");
  require_file(folder, "y_test.npy", "x_test.npy");
  return read_npy_pair(folder / "x_test.npy", folder / "y_test.npy", like);
}

}  // namespace cdgrab::data
