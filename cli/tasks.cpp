// SPDX-License-Identifier: Apache-2.0
// cdgrab tasks: what can be trained, on what, and with which settings unless told otherwise.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.hpp"
#include "tasks/catalogue.hpp"
#include "training/settings.hpp"

namespace cdgrab::cli {
namespace {

using nlohmann::ordered_json;

/// What differs between tasks, and is something to this one.
ordered_json defaults_of(const tasks::TaskInfo& task) {
  ordered_json out;
  const ordered_json all = training::to_json(training::default_settings(task.name));
  for (const char* name : {"epochs", "batch", "lr", "schedule", "optimizer", "momentum", "clip", "width",
                           "layers", "heads", "length", "horizon", "stride", "vocabulary"}) {
    if (all.at(name) == 0) continue;
    if (std::string(name) == "momentum" && task.recipe.optimizer != tasks::Optimizer::kSgd) continue;
    out[name] = all.at(name);
  }
  return out;
}

void print_json() {
  for (const tasks::TaskInfo& task : tasks::all_tasks())
    fmt::print("{}\n", ordered_json{{"task", task.name},
                                    {"model", task.model},
                                    {"data", task.data},
                                    {"setting", task.setting},
                                    {"defaults", defaults_of(task)}}
                           .dump());
}

void print_words() {
  for (const tasks::TaskInfo& task : tasks::all_tasks()) {
    const ordered_json values = defaults_of(task);
    std::string defaults;
    for (const auto& [name, value] : values.items())
      defaults += fmt::format(" --{} {}", name, value.is_string() ? value.get<std::string>() : value.dump());
    fmt::print("{:<10}{}\n{:<10}reads     {}\n{:<10}as in     {}\n{:<10}defaults {}\n\n", task.name,
               task.model, "", task.data, "", task.setting, "", defaults);
  }
  fmt::print("Without --data the examples are generated from --data-seed.\n");
}

}  // namespace

void add_tasks(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* list = app.add_subcommand("tasks", "List what can be trained, with models, data and settings");
  list->add_flag("--json", *json, "One JSON object per task on stdout");
  list->footer("Example:\n  cdgrab tasks");
  list->callback([json] { *json ? print_json() : print_words(); });
}

}  // namespace cdgrab::cli
