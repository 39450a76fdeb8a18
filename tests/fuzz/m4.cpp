// SPDX-License-Identifier: Apache-2.0
#include "data/m4.hpp"

#include <algorithm>
#include <cmath>

#include "fuzz/any_file.hpp"

using namespace cdgrab;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::AnyFile file({data, size});
  fuzz::value_or_file_error([&] {
    const std::vector<data::Series> all = data::read_m4(file.path());
    fuzz::require(!all.empty());
    for (const data::Series& series : all) {
      fuzz::require(!series.name.empty() && !series.values.empty());
      fuzz::require(std::ranges::all_of(series.values, [](float value) { return std::isfinite(value); }));
    }
  });
  return 0;
}
