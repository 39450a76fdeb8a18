// SPDX-License-Identifier: Apache-2.0
// The texts of a checkpoint, its settings and its metrics, and those of flags: what was written, or an error
// of the kind that is promised.
#include "training/settings.hpp"

#include <nlohmann/json.hpp>
#include <string_view>

#include "fuzz/any_file.hpp"
#include "training/record.hpp"
#include "training/split.hpp"

using namespace cdgrab;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::value_or<FileError>([&] {
    const training::Settings settings = training::parse_settings(text);
    fuzz::require(training::parse_settings(training::to_json(settings).dump()) == settings);
    fuzz::value_or<UserError>([&] { training::check_settings(settings); });
  });
  fuzz::value_or<FileError>([&] {
    for (const training::EpochRecord& record : training::parse_records(text))
      fuzz::require(training::to_json(record, "loss").contains("epoch"));
  });
  fuzz::value_or<UserError>([&] { static_cast<void>(training::parse_order_list(text)); });
  fuzz::value_or<UserError>([&] { fuzz::require(training::parse_split(text).alpha >= 0.0); });
  return 0;
}
