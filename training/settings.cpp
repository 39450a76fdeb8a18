// SPDX-License-Identifier: Apache-2.0
#include "training/settings.hpp"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/nearest.hpp"
#include "training/split.hpp"

namespace cdgrab::training {
namespace {

using nlohmann::ordered_json;
constexpr std::string_view kCurriculum = "curriculum";

void read_value(const ordered_json& json, tasks::Optimizer& value) {
  value = tasks::parse_optimizer(json.get<std::string>());
}
void read_value(const ordered_json& json, tasks::Schedule& value) {
  value = tasks::parse_schedule(json.get<std::string>());
}
void read_value(const ordered_json& json, Average& value) { value = parse_average(json.get<std::string>()); }
template <class T>
void read_value(const ordered_json& json, T& value) {
  // Left to itself, JSON makes a count of a negative number and of a fraction.
  if (std::is_unsigned_v<T> && !std::is_same_v<T, bool> && !json.is_number_unsigned())
    throw UserError("settings", fmt::format("{} where a whole number from 0 on is stored", json.dump()));
  json.get_to(value);
}

template <class T>
ordered_json written(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return name_of(value);
  else
    return value;
}

[[noreturn]] void refuse_settings(const std::exception& error) {
  throw FileError("settings",
                  fmt::format("not the settings of a run: {}; use the file that cdgrab wrote", error.what()));
}

void require(bool holds, std::string_view flag, double value, std::string_view allowed) {
  if (!holds) throw UserError(flag, fmt::format("`{}` is not allowed; give {}", value, allowed));
}

void check_recipe(const tasks::Recipe& recipe) {
  const auto share = [](double x) { return x >= 0.0 && x < 1.0; };
  const auto not_negative = [](double x) { return x >= 0.0 && std::isfinite(x); };
  require(recipe.epochs > 0, "--epochs", 0, "a number from 1 on");
  require(recipe.batch > 0, "--batch", 0, "a number from 1 on");
  require(recipe.lr > 0.0 && std::isfinite(recipe.lr), "--lr", recipe.lr, "a number above 0");
  require(share(recipe.momentum), "--momentum", recipe.momentum, "a number from 0 to below 1");
  require(not_negative(recipe.l2), "--l2", recipe.l2, "a number from 0 on");
  require(not_negative(recipe.weight_decay), "--weight-decay", recipe.weight_decay, "a number from 0 on");
  require(not_negative(recipe.clip), "--clip", recipe.clip, "a number from 0 on, where 0 is no limit");
  require(recipe.decay > 0.0 && recipe.decay < 1.0, "--decay", recipe.decay, "a number between 0 and 1");
  require(not_negative(recipe.threshold), "--threshold", recipe.threshold, "a number from 0 on");
  if (recipe.weight_decay > 0.0 && recipe.optimizer == tasks::Optimizer::kSgd)
    throw UserError("--weight-decay",
                    fmt::format("{} with sgd; it belongs to adamw, use --l2 for a penalty in the objective",
                                recipe.weight_decay));
}

void check_sizes(const Settings& settings) {
  using tasks::Sizes;
  constexpr std::array kSizes = {
      std::pair{"--width", &Sizes::width},          std::pair{"--layers", &Sizes::layers},
      std::pair{"--heads", &Sizes::heads},          std::pair{"--length", &Sizes::length},
      std::pair{"--horizon", &Sizes::horizon},      std::pair{"--stride", &Sizes::stride},
      std::pair{"--vocabulary", &Sizes::vocabulary}};
  const Sizes& usual = tasks::find_task(settings.task).sizes;
  for (const auto& [flag, size] : kSizes) {
    if (usual.*size == 0 && settings.sizes.*size != 0)
      throw UserError(flag, fmt::format("the task `{}` has no such size; leave it out", settings.task));
    if (usual.*size != 0 && settings.sizes.*size == 0)
      throw UserError(flag, "`0` is not allowed; give a number from 1 on");
  }
  if (settings.sizes.heads > 0 && settings.sizes.width % settings.sizes.heads != 0)
    throw UserError("--heads", fmt::format("{} heads do not share a width of {} evenly; give a divisor of it",
                                           settings.sizes.heads, settings.sizes.width));
  if (usual.vocabulary > 0 && settings.sizes.vocabulary < 3)
    throw UserError("--vocabulary", fmt::format("`{}` words; two are special, so give a number from 3 on",
                                                settings.sizes.vocabulary));
}

void check_order(const Settings& settings) {
  const Order order = parse_order(settings.order);
  const std::size_t unit = order.spec.unit;
  const bool looks = order.spec.balances() || order.spec.name == OrderName::kGreedy || settings.herding;
  if (unit > 1 && looks && unit != settings.recipe.batch)
    throw UserError("--order", fmt::format("unit={} with batches of {}; the vector of a unit is the gradient "
                                           "of a step, so give --batch {}",
                                           unit, settings.recipe.batch, unit));
  if (unit > 1 && settings.recipe.drop_last)
    throw UserError("--drop-last",
                    fmt::format("with unit={}, whose short last unit has the last place of every order and "
                                "would never be trained on; leave one of them out",
                                unit));
  if (order.curriculum && unit > 1)
    throw UserError("--order",
                    fmt::format("unit={} with curriculum, which orders examples; leave it out", unit));
}

void check_workers(const Settings& settings) {
  const Order order = parse_order(settings.order);
  const Split split = parse_split(settings.split);
  require(settings.workers <= kMaxWorkers, "--workers", static_cast<double>(settings.workers),
          "a number from 1 to 65536, or 0 for one per rank");
  if (order.spec.distributed()) {
    if (settings.recipe.drop_last)
      throw UserError("--drop-last",
                      fmt::format("with `{}`, whose steps weigh all workers' examples alike, those of short "
                                  "batches too; leave it out",
                                  order.label));
    if (settings.herding)
      throw UserError("--herding",
                      fmt::format("with `{}`, whose gradients are on many ranks; `cdgrab simulate` "
                                  "shows the bounds of such orders on fixed vectors",
                                  order.label));
    return;
  }
  constexpr const char* kUse = "use cd-pair, id-pair or d-rr";
  if (settings.workers > 1)
    throw UserError("--workers", fmt::format("{} with `{}`, which orders all examples for one worker; {}",
                                             settings.workers, order.label, kUse));
  if (split.by_label())
    throw UserError("--split", fmt::format("`{}` with `{}`, which has one worker and nothing to deal; {}",
                                           settings.split, order.label, kUse));
  if (settings.overlap)
    throw UserError("--overlap", fmt::format("with `{}`, which has no rounds to run behind training; {}",
                                             order.label, kUse));
}

/// "curriculum; x" -> "score; x"; a list has one more bare name per comma.
std::string with_core_names(std::string_view text) {
  std::string out(text);
  for (std::size_t at = 0; (at = out.find(kCurriculum, at)) != std::string::npos;)
    out.replace(at, kCurriculum.size(), "score");
  return out;
}

bool names_score(std::string_view text) {
  for (std::size_t at = 0; (at = text.find("score", at)) != std::string_view::npos; at += 5) {
    const auto is_letter = [&](std::size_t i) {
      return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '-' ||
                                 text[i] == '/' || text[i] == '.' || text[i] == '_');
    };
    if (!(at > 0 && is_letter(at - 1)) && !is_letter(at + 5)) return true;
  }
  return false;
}

Order order_of(const Spec& spec) {
  Order order{spec, spec.name == OrderName::kScore, print_spec(spec)};
  if (order.curriculum) order.label.replace(0, std::string_view("score").size(), kCurriculum);
  return order;
}

std::string checked_names(std::string_view text) {
  if (names_score(text))
    throw UserError("--order",
                    "`score` has no scores here; `curriculum` is the order by the last epoch's losses");
  constexpr std::size_t kSlip = 3;
  const std::string_view name = text.substr(0, text.find_first_of(";, "));
  if (name != kCurriculum && !name.empty() && edit_distance(name, kCurriculum) <= kSlip)
    throw UserError("--order", fmt::format("unknown order `{}`; the nearest is `{}`", name, kCurriculum));
  return with_core_names(text);
}

}  // namespace

std::string_view name_of(Average average) { return average == Average::kTail ? "tail" : "none"; }

Average parse_average(std::string_view text) {
  if (text == "none") return Average::kNone;
  if (text == "tail") return Average::kTail;
  throw UserError("--average", fmt::format("unknown average `{}`; allowed: none, tail", text));
}

Settings default_settings(std::string_view task) {
  const tasks::TaskInfo& info = tasks::find_task(task);
  Settings settings;
  settings.task = info.name;
  settings.recipe = info.recipe;
  settings.sizes = info.sizes;
  return settings;
}

void check_settings(const Settings& settings) {
  check_recipe(settings.recipe);
  check_sizes(settings);
  check_order(settings);
  check_workers(settings);
  require(settings.threads > 0 && settings.threads <= 1024, "--threads",
          static_cast<double>(settings.threads), "a number from 1 to 1024");
}

bool may_change(std::string_view name) { return name == "workers" || name == "overlap"; }

ordered_json to_json(const Settings& settings) {
  ordered_json out;
  visit_settings(settings, [&](const char* name, const auto& value, const char* /*meaning*/) {
    out[name] = written(value);
  });
  return out;
}

Settings settings_from_json(const ordered_json& json) try {
  Settings settings;
  visit_settings(settings, [&](const char* name, auto& value, const char* /*meaning*/) {
    read_value(json.at(name), value);
  });
  return settings;
} catch (const ordered_json::exception& error) {
  refuse_settings(error);
} catch (const UserError& error) {
  refuse_settings(error);
}

Settings parse_settings(std::string_view text) {
  ordered_json json;
  try {
    json = ordered_json::parse(text);
  } catch (const ordered_json::exception& error) {
    refuse_settings(error);
  }
  return settings_from_json(json);
}

Order parse_order(std::string_view text) { return order_of(parse_spec(checked_names(text))); }

std::vector<Order> parse_order_list(std::string_view text) {
  std::vector<Order> orders;
  for (const Spec& spec : parse_spec_list(checked_names(text))) orders.push_back(order_of(spec));
  return orders;
}

}  // namespace cdgrab::training
