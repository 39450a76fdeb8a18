// SPDX-License-Identifier: Apache-2.0
#include "compare/store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "cdgrab/error.hpp"

namespace cdgrab::cli {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr const char* kWhere = "--out";
constexpr int kFormat = 1;

/// JSON has no infinity and no NaN; both come back as NaN, which is as good here.
json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }
double number(const json& value) { return value.is_null() ? kNotThere : value.get<double>(); }

constexpr std::array kColumns = {
    std::pair{"loss", &EpochPoint::loss},
    std::pair{"metric", &EpochPoint::metric},
    std::pair{"step_seconds", &EpochPoint::step_seconds},
    std::pair{"observe_seconds", &EpochPoint::observe_seconds},
    std::pair{"order_seconds", &EpochPoint::order_seconds},
    std::pair{"herding_bound", &EpochPoint::bound},
};

RunRecord parse_run(const json& line) {
  RunRecord run;
  run.recipe = {line.at("order"), line.at("schedule"), line.at("average")};
  run.rate = line.at("rate").get<double>();
  run.seed = line.at("seed").get<std::uint64_t>();
  run.diverged = line.at("diverged").get<bool>();
  run.epochs.resize(line.at("loss").size());
  for (const auto& [name, member] : kColumns) {
    const json& values = line.at(name);
    if (values.size() != run.epochs.size()) throw std::runtime_error("columns of different length");
    for (std::size_t epoch = 0; epoch < values.size(); ++epoch)
      run.epochs[epoch].*member = number(values[epoch]);
  }
  return run;
}

std::string settings_line(const Settings& settings) {
  json object = json::object();
  for (const auto& [name, value] : settings) object[name] = value;
  return json{{"event", "settings"}, {"format", kFormat}, {"settings", std::move(object)}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

/// As they would be after being written: a path need not be UTF-8.
json as_stored(const Settings& settings) { return json::parse(settings_line(settings)).at("settings"); }

void require_same(const fs::path& file, const json& there, const Settings& settings) {
  const json here = as_stored(settings);
  for (const auto& [name, value] : here.items()) {
    const std::string other = there.contains(name) ? there[name].get<std::string>() : "not set";
    if (other == value.get<std::string>()) continue;
    throw UserError(
        kWhere, fmt::format("\"{}\" holds runs with {} `{}`, and here it is `{}`; name another folder, or "
                            "remove that one",
                            file.parent_path().string(), name, other, value.get<std::string>()));
  }
}

[[noreturn]] void fail(const fs::path& file, std::string_view step) {
  const int error = errno;
  throw FileError(kWhere, fmt::format("cannot {} \"{}\": {}; name another folder with --out", step,
                                      file.string(), std::strerror(error)));
}

[[noreturn]] void fail_damaged(const fs::path& file, std::size_t line, std::string_view what) {
  throw FileError(kWhere, fmt::format("\"{}\" is damaged in line {}: {}; remove the line or the file",
                                      file.string(), line, what));
}

}  // namespace

std::string run_line(const RunRecord& run) {
  json line = {{"event", "run"},
               {"order", run.recipe.order},
               {"schedule", run.recipe.schedule},
               {"average", run.recipe.average},
               {"rate", run.rate},
               {"seed", run.seed},
               {"diverged", run.diverged}};
  for (const auto& [name, member] : kColumns) {
    json values = json::array();
    for (const EpochPoint& point : run.epochs) values.push_back(number(point.*member));
    line[name] = std::move(values);
  }
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

RunRecord parse_run_line(const std::string& line) { return parse_run(json::parse(line)); }

RunStore::RunStore(fs::path file, const Settings& settings) : file_(std::move(file)) {
  descriptor_ = open(file_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(file_, "write");
  try {
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      throw FileError(kWhere,
                      fmt::format("\"{}\" is in use by another cdgrab; wait for it, or name another folder",
                                  file_.string()));
    }
    std::ifstream stream(file_, std::ios::binary);
    read({std::istreambuf_iterator<char>(stream), {}}, settings);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

RunStore::~RunStore() { close(descriptor_); }

void RunStore::read(const std::string& text, const Settings& settings) {
  const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole < text.size() && ftruncate(descriptor_, static_cast<off_t>(whole)) != 0) fail(file_, "write");
  if (whole == 0) {
    append(settings_line(settings) + "\n");
    return;
  }
  std::size_t number = 0;
  for (std::size_t at = 0; at < whole;) {
    const std::size_t end = text.find('\n', at);
    ++number;
    try {
      const json line = json::parse(text.begin() + static_cast<std::ptrdiff_t>(at),
                                    text.begin() + static_cast<std::ptrdiff_t>(end));
      if (number == 1) {
        if (line.at("format") != kFormat)
          throw std::runtime_error("a format that this version does not know");
        require_same(file_, line.at("settings"), settings);
      } else if (line.at("event") == "optimum") {
        knows_optimum_ = true;
        if (!line.at("loss").is_null()) optimum_ = line.at("loss").get<double>();
      } else {
        runs_.push_back(parse_run(line));
      }
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail_damaged(file_, number, error.what());
    }
    at = end + 1;
  }
}

void RunStore::append(const std::string& lines) {
  std::string_view rest = lines;
  while (!rest.empty()) {
    const ssize_t written = write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(file_, "write");
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  if (fsync(descriptor_) != 0) fail(file_, "write");
}

const RunRecord* RunStore::find(const Recipe& recipe, double rate, std::uint64_t seed) const {
  const auto found = std::find_if(runs_.begin(), runs_.end(), [&](const RunRecord& run) {
    return run.seed == seed && run.rate == rate && run.recipe == recipe;
  });
  return found == runs_.end() ? nullptr : &*found;
}

void RunStore::add(std::span<const RunRecord> runs) {
  std::string lines;
  for (const RunRecord& run : runs) {
    if (find(run.recipe, run.rate, run.seed) != nullptr) continue;
    lines += run_line(run) + "\n";
    runs_.push_back(run);
  }
  append(lines);
}

void RunStore::keep_optimum(std::optional<double> loss) {
  append(json{{"event", "optimum"}, {"loss", loss ? json(*loss) : json(nullptr)}}.dump() + "\n");
  knows_optimum_ = true;
  optimum_ = loss;
}

}  // namespace cdgrab::cli
