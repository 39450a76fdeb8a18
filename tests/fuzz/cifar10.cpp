// SPDX-License-Identifier: Apache-2.0
#include "data/cifar10.hpp"

#include <algorithm>

#include "fuzz/any_file.hpp"

using namespace cdgrab;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::AnyFile file({data, size});
  fuzz::value_or_file_error([&] {
    const data::LabelledImages all = data::read_cifar10_batch(file.path());
    fuzz::require(!all.labels.values.empty() && std::ranges::max(all.labels.values) < 10);
    fuzz::require(all.images.values.size() == all.labels.values.size() * 3 * 32 * 32);
  });
  return 0;
}
