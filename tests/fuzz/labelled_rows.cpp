// SPDX-License-Identifier: Apache-2.0
// The input is the length of x in two bytes, the low one first, x, and y.
#include "data/labelled_rows.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "fuzz/any_file.hpp"

using namespace cdgrab;

namespace {

void require_contract(const data::LabelledRows& rows) {
  fuzz::require(rows.dim > 0 && !rows.label.empty());
  fuzz::require(rows.values.size() == rows.label.size() * rows.dim);
  fuzz::require(std::ranges::all_of(rows.values, [](float value) { return std::isfinite(value); }));
  for (const std::int32_t label : rows.label) {
    fuzz::require(static_cast<std::size_t>(label) < rows.label_names.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::span<const std::uint8_t> both(data + 2, size - 2);
  const std::size_t length = std::min<std::size_t>(data[0] | data[1] << 8U, both.size());
  const fuzz::AnyFile x(both.first(length));
  const fuzz::AnyFile y(both.subspan(length));
  fuzz::value_or_file_error([&] {
    const data::LabelledRows rows = data::read_npy_pair(x.path(), y.path());
    require_contract(rows);
    require_contract(data::read_npy_pair(x.path(), y.path(), rows));
  });
  const data::LabelledRows like{2, {}, {}, {0, 1}};
  fuzz::value_or_file_error([&] { require_contract(data::read_npy_pair(x.path(), y.path(), like)); });
  return 0;
}
