// SPDX-License-Identifier: Apache-2.0
// A state with some of its values changed, as a script says: what someone could write who knows the format
// and computes the checksum.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "cdgrab/state.hpp"
#include "fuzz/script.hpp"

namespace cdgrab::fuzz {

/// Small and whole, for vectors to observe.
inline std::vector<float> numbers(std::size_t count) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(i * i % 7) - 3.0F;
  return out;
}

/// An array of as many bytes as are there, cut to whole elements, in one dimension or in two.
inline Array reshaped(Array array, DType dtype, std::size_t elements, bool two) {
  array.dtype = dtype;
  array.bytes.resize(elements * dtype_size(dtype));
  array.shape = two ? std::vector<std::uint64_t>{1, elements} : std::vector<std::uint64_t>{elements};
  return array;
}

inline Array edited(Array array, Script& script) {
  const std::size_t size = dtype_size(array.dtype);
  const std::size_t elements = array.bytes.size() / size;
  switch (script.below(4)) {
    case 0:
      return reshaped(array, array.dtype, script.below(64), false);
    case 1:
      return reshaped(array, static_cast<DType>(script.below(6)), elements, false);
    case 2:
      return reshaped(array, array.dtype, elements, true);
    default:
      if (elements == 0) return array;
      const std::size_t at = script.below(elements) * size;
      const auto value = script.take<std::uint64_t>();
      std::memcpy(array.bytes.data() + at, &value, size);
      return array;
  }
}

/// One value dropped, replaced or changed in place.
inline State edited_once(const State& state, Script& script) {
  const auto& entries = state.entries();
  if (entries.empty()) return state;
  const auto chosen = std::next(entries.begin(), static_cast<std::ptrdiff_t>(script.below(entries.size())));
  State out;
  for (auto entry = entries.begin(); entry != entries.end(); ++entry)
    if (entry != chosen) std::visit([&](const auto& value) { out.set(entry->first, value); }, entry->second);
  const std::string& key = chosen->first;
  switch (script.below(6)) {
    case 0:
      break;
    case 1:
      out.set(key, script.take<std::int64_t>());
      break;
    case 2:
      out.set(key, std::bit_cast<double>(script.take<std::uint64_t>()));
      break;
    case 3:
      out.set(key, std::to_string(script.take<std::uint8_t>()));
      break;
    case 4:
      std::visit(
          [&](const auto& value) { out.set(key, value); },
          std::next(entries.begin(), static_cast<std::ptrdiff_t>(script.below(entries.size())))->second);
      break;
    default:
      if (const auto* array = std::get_if<Array>(&chosen->second))
        out.set(key, edited(*array, script));
      else
        out.set(key, std::int64_t{script.take<std::int8_t>()});
  }
  return out;
}

inline State edited(State state, Script& script) {
  for (int edits = 0; edits < 8 && !script.done(); ++edits) state = edited_once(state, script);
  return state;
}

}  // namespace cdgrab::fuzz
