// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/torch/parameter_set.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <unordered_map>

#include "cdgrab/error.hpp"

namespace cdgrab::torch {
namespace {

struct Named {
  std::string name;
  at::Tensor parameter;  ///< keeps it alive, so that no other can take its place in memory
  bool counts = false;
};

std::vector<std::string> split(std::string_view pattern) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : pattern) {
    if (c == ',')
      parts.push_back(std::exchange(part, {}));
    else if (c != ' ')
      part += c;
  }
  parts.push_back(part);
  return parts;
}

/// Without a part that adds, all are in before some are taken away.
bool matches(const std::string& name, const std::vector<std::string>& parts) {
  const auto takes_away = [](const std::string& part) { return part.starts_with('!'); };
  bool in = std::all_of(parts.begin(), parts.end(), takes_away);
  for (const std::string& part : parts) {
    const bool out = takes_away(part);
    if (fnmatch(part.c_str() + (out ? 1 : 0), name.c_str(), 0) == 0) in = !out;
  }
  return in;
}

std::vector<std::pair<std::string, at::Tensor>> named_parameters(const ::torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), item.value());
  return all;
}

}  // namespace

struct ParameterSet::Names {
  std::unordered_map<const void*, Named> of;
  std::vector<const void*> order;
};

ParameterSet::ParameterSet(const ::torch::nn::Module& module, std::string_view pattern)
    : ParameterSet(named_parameters(module), pattern) {}

ParameterSet::ParameterSet(std::vector<std::pair<std::string, at::Tensor>> named, std::string_view pattern) {
  const auto parts = split(pattern);
  auto names = std::make_shared<Names>();
  bool any = false;
  for (auto& [name, parameter] : named) {
    const bool counts = matches(name, parts);
    any = any || counts;
    const void* key = parameter.unsafeGetTensorImpl();
    // A tied parameter has several names; one that matches is enough.
    const auto [place, fresh] = names->of.try_emplace(key, Named{name, parameter, counts});
    if (fresh) names->order.push_back(key);
    Named& entry = place->second;
    entry.counts = entry.counts || counts;
  }
  if (!any) {
    std::vector<std::string> some;
    for (std::size_t i = 0; i < std::min<std::size_t>(named.size(), 5); ++i) some.push_back(named[i].first);
    throw UserError("ParameterSet", fmt::format("'{}' matches none of {} parameters; their names are {}{}",
                                                pattern, named.size(), fmt::join(some, ", "),
                                                named.size() > some.size() ? ", .." : ""));
  }
  names_ = std::move(names);
}

std::vector<std::pair<std::string, at::Tensor>> ParameterSet::named() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  if (names_ == nullptr) return all;
  for (const void* key : names_->order)
    if (const Named& entry = names_->of.at(key); entry.counts) all.emplace_back(entry.name, entry.parameter);
  return all;
}

bool ParameterSet::contains(const at::Tensor& parameter) const {
  if (names_ == nullptr) return true;
  const auto found = names_->of.find(parameter.unsafeGetTensorImpl());
  return found != names_->of.end() && found->second.counts;
}

std::string ParameterSet::name(const at::Tensor& parameter) const {
  if (names_ == nullptr) return {};
  const auto found = names_->of.find(parameter.unsafeGetTensorImpl());
  return found == names_->of.end() ? std::string() : found->second.name;
}

std::string ParameterSet::describe(const at::Tensor& parameter) const {
  const std::string shape = fmt::format("{}", fmt::join(parameter.sizes(), "x"));
  const std::string known = name(parameter);
  return known.empty() ? "a parameter of shape " + shape : fmt::format("{} ({})", known, shape);
}

}  // namespace cdgrab::torch
