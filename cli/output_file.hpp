// SPDX-License-Identifier: Apache-2.0
// Files that a command leaves behind.
#pragma once

#include <filesystem>
#include <string_view>

namespace cdgrab::cli {

/// Before the work starts: throws FileError unless a file could be put at `path`, named by `option`.
void require_writable(const std::filesystem::path& path, std::string_view option);

/// Written beside and renamed: the old file or the whole new one. Throws FileError.
void write_text_file(const std::filesystem::path& path, std::string_view text, std::string_view option);

}  // namespace cdgrab::cli
