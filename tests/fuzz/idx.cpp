// SPDX-License-Identifier: Apache-2.0
#include "data/idx.hpp"

#include <functional>
#include <numeric>

#include "fuzz/any_file.hpp"

using namespace cdgrab;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::AnyFile file({data, size});
  fuzz::value_or_file_error([&] {
    const data::Bytes bytes = data::read_idx(file.path());
    const auto count =
        std::accumulate(bytes.shape.begin(), bytes.shape.end(), std::uint64_t{1}, std::multiplies<>());
    fuzz::require(bytes.values.size() == count);
  });
  return 0;
}
