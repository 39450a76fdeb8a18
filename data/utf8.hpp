// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace cdgrab::data {

/// How many bytes from the start are sound UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing
/// above U+10FFFF): the size of `text` if all are, or else where the first bad character begins.
std::size_t valid_utf8_bytes(std::string_view text);

}  // namespace cdgrab::data
