// SPDX-License-Identifier: Apache-2.0
#include "data/utf8.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace cdgrab::data {
namespace {

// RFC 3629, section 4: what may follow a first byte. Only the second byte's range varies.
struct Form {
  std::uint8_t first_from, first_to;
  std::uint8_t second_from, second_to;
  std::size_t length;
};

constexpr std::array<Form, 8> kForms{{{0xC2, 0xDF, 0x80, 0xBF, 2},
                                      {0xE0, 0xE0, 0xA0, 0xBF, 3},
                                      {0xE1, 0xEC, 0x80, 0xBF, 3},
                                      {0xED, 0xED, 0x80, 0x9F, 3},
                                      {0xEE, 0xEF, 0x80, 0xBF, 3},
                                      {0xF0, 0xF0, 0x90, 0xBF, 4},
                                      {0xF1, 0xF3, 0x80, 0xBF, 4},
                                      {0xF4, 0xF4, 0x80, 0x8F, 4}}};

std::uint8_t byte_at(std::string_view text, std::size_t at) { return static_cast<std::uint8_t>(text[at]); }

// Of the character at the start of `text`; 0 if it is not one.
std::size_t character_length(std::string_view text) {
  const std::uint8_t first = byte_at(text, 0);
  if (first < 0x80) return 1;
  const auto form = std::ranges::find_if(
      kForms, [&](const Form& f) { return first >= f.first_from && first <= f.first_to; });
  if (form == kForms.end() || text.size() < form->length) return 0;
  const std::uint8_t second = byte_at(text, 1);
  if (second < form->second_from || second > form->second_to) return 0;
  for (std::size_t k = 2; k < form->length; ++k) {
    if (byte_at(text, k) < 0x80 || byte_at(text, k) > 0xBF) return 0;
  }
  return form->length;
}

}  // namespace

std::size_t valid_utf8_bytes(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = character_length(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

}  // namespace cdgrab::data
