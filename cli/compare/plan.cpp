// SPDX-License-Identifier: Apache-2.0
#include "compare/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cdgrab/error.hpp"
#include "format.hpp"

namespace cdgrab::cli {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::string word = text.substr(at, end - at);
    word.erase(0, word.find_first_not_of(' '));
    word.erase(word.find_last_not_of(' ') + 1);
    words.push_back(std::move(word));
    at = end + 1;
  }
  return words;
}

template <class T>
void add_once(std::vector<T>& values, const T& value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

double parse_rate(const std::string& text) {
  double rate = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc{} || end != text.data() + text.size() || !(rate > 0.0) || !std::isfinite(rate)) {
    throw UserError(
        "--lr",
        fmt::format("`{}` is not a rate; give numbers above 0 with commas, as in 1e-3,3e-3,1e-2", text));
  }
  return rate;
}

std::vector<double> parse_rates(const std::string& text, double usual) {
  std::vector<double> rates;
  if (text.empty()) {
    for (const double factor : {0.3, 1.0, 3.0})
      rates.push_back(parse_rate(fmt::format("{:.6g}", factor * usual)));
  } else {
    for (const std::string& word : split(text)) add_once(rates, parse_rate(word));
  }
  std::sort(rates.begin(), rates.end());
  return rates;
}

std::vector<std::string> parse_orders(const std::string& text) {
  std::vector<std::string> orders = {kBaselineOrder};
  for (const training::Order& order : training::parse_order_list(text)) add_once(orders, order.label);
  return orders;
}

/// "--schedule" or "--average".
template <class Parse>
auto parse_words(const std::string& text, const Parse& parse) {
  std::vector<decltype(parse(text))> values;
  for (const std::string& word : split(text)) add_once(values, parse(word));
  return values;
}

bool is_varied(std::string_view name) {
  constexpr std::array<std::string_view, 5> kVaried = {"order", "lr", "schedule", "average", "seed"};
  return std::find(kVaried.begin(), kVaried.end(), name) != kVaried.end();
}

}  // namespace

Plan make_plan(const CompareOptions& options) {
  Plan plan;
  plan.shared = options.flags->settings();
  plan.orders = parse_orders(options.orders);
  plan.rates = parse_rates(options.rates, plan.shared.recipe.lr);
  plan.schedules = {plan.shared.recipe.schedule};
  if (!options.schedules.empty())
    plan.schedules =
        parse_words(options.schedules, [](const std::string& word) { return tasks::parse_schedule(word); });
  plan.averages =
      parse_words(options.averages, [](const std::string& word) { return training::parse_average(word); });
  for (std::size_t i = 0; i < options.seeds; ++i) plan.seeds.push_back(options.seed + i);
  for (const std::string& order : plan.orders) {
    training::Settings settings = plan.shared;
    settings.order = order;
    training::check_settings(settings);
  }
  return plan;
}

std::vector<Training> trainings_of(const Plan& plan) {
  std::vector<Training> trainings;
  for (const std::uint64_t seed : plan.seeds) {
    for (const tasks::Schedule schedule : plan.schedules) {
      for (const double rate : plan.rates) {
        for (const std::string& order : plan.orders) trainings.push_back({order, schedule, rate, seed});
      }
    }
  }
  return trainings;
}

training::Settings settings_of(const Plan& plan, const Training& training) {
  training::Settings settings = plan.shared;
  settings.order = training.order;
  settings.recipe.schedule = training.schedule;
  settings.recipe.lr = training.rate;
  settings.seed = training.seed;
  const bool averages =
      std::find(plan.averages.begin(), plan.averages.end(), training::Average::kTail) != plan.averages.end();
  settings.average = averages ? training::Average::kTail : training::Average::kNone;
  return settings;
}

Recipe recipe_of(const Training& training, training::Average average) {
  return {training.order, std::string(name_of(training.schedule)), std::string(name_of(average))};
}

Settings shared_settings(const Plan& plan) {
  Settings settings;
  const nlohmann::ordered_json values = training::to_json(plan.shared);
  for (const auto& [name, value] : values.items()) {
    if (!is_varied(name))
      settings.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return settings;
}

CompareResult result_of(const Plan& plan) {
  CompareResult result;
  result.task = plan.shared.task;
  result.orders = plan.orders;
  for (const tasks::Schedule schedule : plan.schedules) result.schedules.emplace_back(name_of(schedule));
  for (const training::Average average : plan.averages) result.averages.emplace_back(name_of(average));
  result.rates = plan.rates;
  result.seeds = plan.seeds;
  result.epochs = plan.shared.recipe.epochs;
  return result;
}

}  // namespace cdgrab::cli
