// SPDX-License-Identifier: Apache-2.0
#include "state_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "cdgrab/permutation.hpp"
#include "cdgrab/spec.hpp"
#include "format.hpp"

namespace cdgrab::cli {
namespace {

using nlohmann::ordered_json;

template <class T>
ordered_json describe_elements(const Array& array) {
  std::vector<T> values(array.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), array.bytes.data(), values.size() * sizeof(T));
  ordered_json out = ordered_json::object();
  std::size_t not_finite = 0;
  if constexpr (std::is_floating_point_v<T>) {
    not_finite = static_cast<std::size_t>(std::erase_if(values, [](T v) { return !std::isfinite(v); }));
    double squares = 0.0;
    for (const T v : values) squares += static_cast<double>(v) * static_cast<double>(v);
    out["l2"] = std::sqrt(squares);
    out["not_finite"] = not_finite;
  }
  if (values.empty()) return out;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  out["min"] = *low;
  out["max"] = *high;
  return out;
}

ordered_json describe_array(const Array& array) {
  ordered_json out = {{"kind", dtype_name(array.dtype)}, {"shape", array.shape}};
  const auto elements = [&] {
    switch (array.dtype) {
      case DType::kU8:
        return describe_elements<std::uint8_t>(array);
      case DType::kU16:
        return describe_elements<std::uint16_t>(array);
      case DType::kU32:
        return describe_elements<std::uint32_t>(array);
      case DType::kI64:
        return describe_elements<std::int64_t>(array);
      case DType::kF32:
        return describe_elements<float>(array);
      case DType::kF64:
        return describe_elements<double>(array);
    }
    return ordered_json::object();
  };
  out.update(elements());
  return out;
}

ordered_json describe_value(const State::Value& value) {
  return std::visit(
      [](const auto& v) -> ordered_json {
        using V = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<V, Array>) return describe_array(v);
        if constexpr (std::is_same_v<V, std::int64_t>) return {{"kind", "integer"}, {"value", v}};
        if constexpr (std::is_same_v<V, double>) return {{"kind", "number"}, {"value", v}};
        if constexpr (std::is_same_v<V, std::string>) return {{"kind", "text"}, {"value", v}};
      },
      value);
}

/// The order's line in describe_specs().
std::string meaning_of(std::string_view spec) {
  const std::string head = "\n  " + std::string(spec.substr(0, spec.find(';'))) + " ";
  const std::string all = describe_specs();
  const std::size_t line = all.find(head);
  if (line == std::string::npos) return "";
  const std::size_t text = all.find_first_not_of(' ', line + head.size());
  return all.substr(text, all.find('\n', text) - text);
}

ordered_json describe_order(const State& state) {
  if (!state.contains("order.current")) return nullptr;
  const Array& array = state.array("order.current");
  if (array.dtype != DType::kU32) return nullptr;
  const std::vector<Index> order = state.elements<Index>("order.current", array.bytes.size() / sizeof(Index));
  return {{"length", order.size()},
          {"permutation", is_permutation(order)},
          {"hash", fmt::format("{:016x}", order_hash(order))}};
}

ordered_json describe_state(const std::string& path, const State& state) {
  ordered_json out = {{"file", path}, {"format_version", kStateVersion}};
  if (state.contains("spec")) {
    out["spec"] = state.text("spec");
    out["meaning"] = meaning_of(state.text("spec"));
  }
  for (const char* key : {"examples", "seed", "epoch", "handed_out", "observed"}) {
    if (state.contains(key)) out[key] = describe_value(state.entries().find(key)->second)["value"];
  }
  if (out.contains("seed")) out["seed"] = static_cast<std::uint64_t>(state.integer("seed"));
  out["order"] = describe_order(state);
  ordered_json entries = ordered_json::object();
  for (const auto& [key, value] : state.entries()) entries[key] = describe_value(value);
  out["entries"] = entries;
  return out;
}

/// A file's text must not move the cursor, or begin a line that looks like ours.
std::string on_one_line(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f)
      out.push_back(c);
    else
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
  }
  return out;
}

std::string plain(const ordered_json& value) {
  if (value.is_number_float()) return format_number(value.get<double>());
  return value.is_string() ? on_one_line(value.get<std::string>())
                           : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string summary_of(const ordered_json& entry) {
  if (entry.contains("value")) return plain(entry["value"]);
  std::string out;
  if (entry.contains("min")) out += fmt::format("min {}, max {}", plain(entry["min"]), plain(entry["max"]));
  if (!entry.contains("not_finite")) return out;
  const auto not_finite = entry["not_finite"].get<std::size_t>();
  return fmt::format("{}{}l2 {}, {}", out, out.empty() ? "" : ", ", plain(entry["l2"]),
                     not_finite == 0 ? "all finite" : fmt::format("{} not finite", not_finite));
}

std::string words_of(const ordered_json& state) {
  std::string out;
  const auto add = [&]<class... Values>(fmt::format_string<Values...> text, Values&&... values) {
    fmt::format_to(std::back_inserter(out), text, std::forward<Values>(values)...);
  };
  add("{}: a cdgrab state, format version {}\n\n", plain(state["file"]), plain(state["format_version"]));
  for (const char* key : {"spec", "meaning", "examples", "seed", "epoch", "handed_out", "observed"}) {
    if (state.contains(key)) add("{:<12}{}\n", key, plain(state[key]));
  }
  const ordered_json& order = state["order"];
  if (!order.is_null()) {
    add("{:<12}{} of length {}, hash {}\n", "order",
        order["permutation"].get<bool>() ? "a permutation" : "not a permutation", plain(order["length"]),
        plain(order["hash"]));
  }
  std::size_t widest = 3;
  for (const auto& [key, entry] : state["entries"].items()) widest = std::max(widest, key.size());
  add("\n{:<{}}  {:<8}{:<16}holds\n", "key", widest, "kind", "shape");
  for (const auto& [key, entry] : state["entries"].items()) {
    const std::string shape = entry.contains("shape") ? plain(entry["shape"]) : "";
    add("{:<{}}  {:<8}{:<16}{}\n", on_one_line(key), widest, plain(entry["kind"]), shape, summary_of(entry));
  }
  return out;
}

}  // namespace

std::string state_words(const std::string& path, const State& state) {
  return words_of(describe_state(path, state));
}

std::string state_json(const std::string& path, const State& state) {
  return describe_state(path, state).dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace cdgrab::cli
