// SPDX-License-Identifier: Apache-2.0
#include "settings_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "cdgrab/error.hpp"

namespace cdgrab::cli {
namespace {

using training::Settings;

template <class T>
void parse(const std::string& flag, const std::string& text, T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    value = text;
  } else if constexpr (std::is_same_v<T, bool>) {
    value = true;
  } else if constexpr (std::is_same_v<T, tasks::Optimizer>) {
    value = tasks::parse_optimizer(text);
  } else if constexpr (std::is_same_v<T, tasks::Schedule>) {
    value = tasks::parse_schedule(text);
  } else if constexpr (std::is_same_v<T, training::Average>) {
    value = training::parse_average(text);
  } else {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc{} && end == text.data() + text.size()) return;
    throw UserError(flag, std::is_integral_v<T>
                              ? fmt::format("`{}` must be a whole number from 0 to {}", text,
                                            std::numeric_limits<T>::max())
                              : fmt::format("`{}` must be a number, as in 0.01 or 1e-2", text));
  }
}

/// What stands for a value in --help.
template <class T>
constexpr const char* kind_of() {
  if constexpr (std::is_same_v<T, double>) return "NUMBER";
  if constexpr (std::is_integral_v<T>) return "COUNT";
  return "TEXT";
}

}  // namespace

SettingsFlags::SettingsFlags(CLI::App& command, const std::vector<std::string_view>& without) {
  const Settings names;
  training::visit_settings(names, [&](const char* name, const auto& value, const char* meaning) {
    if (std::find(without.begin(), without.end(), name) != without.end()) return;
    using T = std::decay_t<decltype(value)>;
    Flag& flag = flags_[name];
    if constexpr (std::is_same_v<T, bool>)
      flag.option = command.add_flag(fmt::format("--{}", name), flag.on, meaning);
    else
      flag.option =
          command.add_option(fmt::format("--{}", name), flag.text, meaning)->type_name(kind_of<T>());
  });
}

bool SettingsFlags::given(const std::string& name) const {
  const auto found = flags_.find(name);
  return found != flags_.end() && found->second.option->count() > 0;
}

void SettingsFlags::require_only(const std::vector<std::string_view>& names,
                                 std::string_view belongs_to) const {
  for (const auto& [name, flag] : flags_)
    if (given(name) && std::find(names.begin(), names.end(), name) == names.end())
      throw UserError(fmt::format("--{}", name), fmt::format("belongs to {}", belongs_to));
}

void SettingsFlags::apply(Settings& settings) const {
  training::visit_settings(settings, [&](const char* name, auto& value, const char* /*meaning*/) {
    if (given(name)) parse(fmt::format("--{}", name), flags_.at(name).text, value);
  });
}

Settings SettingsFlags::unchecked() const {
  Settings settings = training::default_settings(given("task") ? flags_.at("task").text : Settings().task);
  apply(settings);
  return settings;
}

Settings SettingsFlags::settings() const {
  Settings settings = unchecked();
  training::check_settings(settings);
  return settings;
}

Settings SettingsFlags::resumed(const Settings& stored) const {
  Settings asked = stored;
  apply(asked);
  const auto there = training::to_json(stored);
  const auto here = training::to_json(asked);
  for (const auto& [name, value] : here.items())
    if (there.at(name) != value && !training::may_change(name))
      throw StateMismatch(fmt::format("--{}", name),
                          fmt::format("`{}`, but the run was started with `{}`; leave the flag out to go on, "
                                      "or start another run",
                                      value.dump(), there.at(name).dump()));
  return asked;
}

}  // namespace cdgrab::cli
