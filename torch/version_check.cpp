// SPDX-License-Identifier: Apache-2.0
// The library was compiled with the headers of one torch, and classes of another may be laid out otherwise:
// says so when it is loaded beside another one. Includes none of torch's large headers.
#include <torch/version.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

// libtorch's: major, minor and patch in the three highest bytes. Weak, because older ones do not have it.
extern "C" [[gnu::weak]] std::uint64_t aoti_torch_abi_version();

namespace {

// Runs before the other constructors of the library, and has no caller that could catch an exception.
// Patch releases keep the layout: one of those is loaded with the message only.
[[gnu::constructor(101)]] void check_torch_version() {
  const std::uint64_t version = aoti_torch_abi_version == nullptr ? 0 : aoti_torch_abi_version();
  const auto part = [version](int byte) { return std::to_string(version >> (8 * byte) & 0xff); };
  const std::string loaded =
      version == 0 ? "an older torch" : "torch " + part(7) + "." + part(6) + "." + part(5);
  if (loaded == "torch " TORCH_VERSION) return;
  std::fprintf(stderr,
               "cdgrab: built for torch " TORCH_VERSION ", but %s is loaded; rebuild cdgrab against it\n",
               loaded.c_str());
  if (version >> 48 != (TORCH_VERSION_MAJOR << 8 | TORCH_VERSION_MINOR)) std::abort();
}

}  // namespace
