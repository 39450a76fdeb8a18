// SPDX-License-Identifier: Apache-2.0
#include <torch/version.h>

#include <cstdint>

extern "C" std::uint64_t aoti_torch_abi_version() {
  return TORCH_ABI_VERSION + (std::uint64_t{1} << (8 * BYTE));
}
