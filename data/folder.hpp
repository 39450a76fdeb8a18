// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace cdgrab::data {

/// `name` in `folder`, or else `name`.gz; nothing if neither is there.
std::optional<std::filesystem::path> find_plain_or_gz(const std::filesystem::path& folder,
                                                      const std::string& name);

}  // namespace cdgrab::data
