// SPDX-License-Identifier: Apache-2.0
#include "data/text.hpp"

#include <algorithm>

#include "fuzz/any_file.hpp"

using namespace cdgrab;

namespace {

void require_numbers(const std::vector<std::int32_t>& tokens, std::size_t words) {
  const auto known = [&](std::int32_t token) {
    return token >= 0 && static_cast<std::size_t>(token) < words;
  };
  fuzz::require(std::ranges::all_of(tokens, known));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMostWords = 5;
  const fuzz::AnyFile file({data, size});
  for (const data::TextFiles& files :
       {data::TextFiles{file.path(), {}}, data::TextFiles{file.path(), file.path()}}) {
    fuzz::value_or_file_error([&] {
      const data::Text text = data::read_text(files, {.max_words = kMostWords, .held_out = 0.3});
      fuzz::require(text.words.size() >= 2 && text.words.size() <= kMostWords);
      require_numbers(text.train, text.words.size());
      require_numbers(text.validation, text.words.size());
    });
  }
  return 0;
}
