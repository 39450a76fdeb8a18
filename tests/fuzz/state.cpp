// SPDX-License-Identifier: Apache-2.0
// A state file: read as it is, and once more with the right checksum in place of what is there, so that what
// lies behind the checksum is met too. What can be read is written as the same again, is shown by `cdgrab
// inspect`, and is loaded, or refused, by the sampler that it describes.
#include "cdgrab/state.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cdgrab/sampler.hpp"
#include "fuzz/any_file.hpp"
#include "state_words.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

using namespace cdgrab;

namespace {

void load(const State& state) {
  constexpr std::int64_t kMostExamples = 100;
  if (!state.contains("spec") || !state.contains("examples")) return;
  const std::int64_t examples = state.integer("examples");
  const Spec spec = parse_spec(state.text("spec"));
  constexpr std::size_t kMostLevels = 6;
  if (examples < 0 || examples > kMostExamples || spec.depth > kMostLevels || spec.name == OrderName::kFile)
    return;
  Sampler sampler(static_cast<std::size_t>(examples), spec);
  sampler.load(state);
  sampler.end_epoch();
  fuzz::require(spec.name == OrderName::kWithReplacement || is_permutation(sampler.order()));
}

void read(std::span<const std::uint8_t> bytes) {
  const fuzz::AnyFile file(bytes);
  fuzz::value_or<FileError>([&] {
    const State state = load_state(file.path());
    const std::vector<std::byte> written = encode_state(state);
    fuzz::require(encode_state(decode_state(written, "fuzz")) == written);  // NaN is not equal to itself
    fuzz::value_or<StateMismatch>([&] { fuzz::require(!cli::state_words("any", state).empty()); });
    fuzz::value_or<StateMismatch>([&] { fuzz::require(!cli::state_json("any", state).empty()); });
    fuzz::value_or<Error>([&] { load(state); });
  });
}

/// With its own length of the header kept within the file, and the checksum that its bytes have.
std::vector<std::uint8_t> repaired(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kStart = R"("checksum":")";
  constexpr std::size_t kDigits = 16;
  std::vector<std::uint8_t> file(bytes.begin(), bytes.end());
  const auto at = std::search(file.begin(), file.end(), kStart.begin(), kStart.end());
  if (static_cast<std::size_t>(file.end() - at) < kStart.size() + kDigits) return file;
  const auto digits = at + static_cast<std::ptrdiff_t>(kStart.size());
  std::fill_n(digits, kDigits, std::uint8_t{'0'});
  std::uint64_t hash = XXH3_64bits(file.data(), file.size());
  for (std::ptrdiff_t k = kDigits; k-- > 0; hash >>= 4U)
    digits[k] = static_cast<std::uint8_t>("0123456789abcdef"[hash & 15U]);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  read(bytes);
  read(repaired(bytes));
  return 0;
}
