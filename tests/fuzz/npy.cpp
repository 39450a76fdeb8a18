// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/npy.hpp"

#include "fuzz/any_file.hpp"

using namespace cdgrab;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::AnyFile file({data, size});
  fuzz::value_or_file_error([&] {
    std::visit([](const auto& x) { fuzz::require(x.values.size() == x.rows * x.dim); },
               read_npy_matrix(file.path()));
  });
  fuzz::value_or_file_error([&] { static_cast<void>(read_npy_order(file.path())); });
  fuzz::value_or_file_error([&] { static_cast<void>(read_npy_integers(file.path())); });
  return 0;
}
