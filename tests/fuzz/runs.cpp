// SPDX-License-Identifier: Apache-2.0
// The file of finished runs that `cdgrab compare --out` goes on from.
#include "compare/store.hpp"
#include "fuzz/any_file.hpp"

using namespace cdgrab;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::AnyFile file({data, size});
  fuzz::value_or<FileError, UserError>([&] {
    const cli::RunStore store(file.path(), {{"task", "logistic"}, {"epochs", "2"}});
    if (const cli::RunRecord* run = store.find({"pair", "constant", "none"}, 0.1, 0))
      fuzz::require(cli::run_line(cli::parse_run_line(cli::run_line(*run))) == cli::run_line(*run));
  });
  return 0;
}
