// SPDX-License-Identifier: Apache-2.0
#include "columns.hpp"

#include <algorithm>

namespace cdgrab::cli {
namespace {

/// Characters, not bytes.
std::size_t length_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::vector<std::size_t> widths_of(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], length_of(row[i]));
  }
  return widths;
}

}  // namespace

std::string align_columns(const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  const std::vector<std::size_t> widths = widths_of(rows);
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - length_of(row[i]), ' ');
      if (i > 0) line += "  ";
      line += i < left ? row[i] + padding : padding + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

}  // namespace cdgrab::cli
