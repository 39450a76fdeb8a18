// SPDX-License-Identifier: Apache-2.0
// cdgrab inspect: what a state file holds, in words.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cdgrab/state.hpp"
#include "commands.hpp"
#include "state_words.hpp"

namespace cdgrab::cli {
namespace {

struct InspectOptions {
  std::string path;
  bool json = false;
};

void run_inspect(const InspectOptions& options) {
  const State state = load_state(options.path);
  fmt::print("{}", options.json ? state_json(options.path, state) : state_words(options.path, state));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* inspect = app.add_subcommand("inspect", "Explain a state file");
  inspect->add_option("STATE", options->path, "A state saved by cdgrab (.safetensors)")->required();
  inspect->add_flag("--json", options->json, "One JSON object on stdout");
  inspect->footer("Example:\n  cdgrab inspect pair.safetensors");
  inspect->callback([options] { run_inspect(*options); });
}

}  // namespace cdgrab::cli
