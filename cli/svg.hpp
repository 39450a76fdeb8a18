// SPDX-License-Identifier: Apache-2.0
// What drawings have in common.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cdgrab::cli {

/// &, <, >, " and ' as entities; control characters become U+FFFD.
std::string escape_html(std::string_view text);

/// The first `most` bytes, cut with an ellipsis and never within a character.
std::string shortened(const std::string& text, std::size_t most);

/// `drawing` as an image with a title and a description for those who cannot see it. `id`: unique on the
/// page.
std::string svg_frame(std::string_view id, std::string_view title, std::string_view description, double width,
                      double height, std::string_view drawing);

}  // namespace cdgrab::cli
