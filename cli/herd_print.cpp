// SPDX-License-Identifier: Apache-2.0
#include "herd_print.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "cdgrab/version.hpp"
#include "format.hpp"

namespace cdgrab::cli {
namespace {

using json = nlohmann::ordered_json;

constexpr std::size_t kNumber = 11;  // columns of one number

class TablePrinter : public HerdPrinter {
 public:
  void begin(const HerdResult& result) override {
    std::string labels(5, ' ');
    std::string heads = "round";
    for (const Lane& lane : result.lanes) {
      labels += fmt::format("  {:>{}}", lane.label, width(lane));
      heads += fmt::format("  {:>{}}{:>{}}", "l-infinity", width(lane) - kNumber, "l2", kNumber);
    }
    fmt::print("{}\n{}\n", labels, heads);
  }

  void round(const HerdResult& result, std::size_t round) override {
    std::string line = fmt::format("{:>5}", round);
    for (const Lane& lane : result.lanes) {
      const HerdingBound& bound = lane.bounds[round];
      line += fmt::format("  {:>{}}{:>{}}", format_number(bound.linf), width(lane) - kNumber,
                          format_number(bound.l2), kNumber);
    }
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  void end(const HerdResult& result) override {
    fmt::print("\nA random order: l-infinity {}, l2 {} (median of {}).\n", format_number(result.random.linf),
               format_number(result.random.l2), kRandomOrders);
    std::size_t widest = 5;
    for (const Lane& lane : result.lanes) widest = std::max(widest, lane.label.size());
    fmt::print("{:<{}}  {:>22}  {:>14}\n", "order", widest, "below it in l-infinity", "in l2");
    for (const Lane& lane : result.lanes) {
      const Gain gain = gain_of(result, lane);
      fmt::print("{:<{}}  {:>22}  {:>14}\n", lane.label, widest, times(gain.linf), times(gain.l2));
    }
    fmt::print("\n");
    for (const Lane& lane : result.lanes) fmt::print("{}\n", verdict(result, lane));
  }

 private:
  static std::size_t width(const Lane& lane) { return std::max(2 * kNumber, lane.label.size()); }
  static std::string times(double gain) { return std::isfinite(gain) ? format_gain(gain) + "x" : "-"; }
};

json as_json(const HerdingBound& bound) { return {{"l2", bound.l2}, {"linf", bound.linf}}; }

class JsonPrinter : public HerdPrinter {
 public:
  explicit JsonPrinter(const HerdOptions& options) : options_(options) {}

  void begin(const HerdResult& /*result*/) override {}

  void round(const HerdResult& result, std::size_t round) override {
    for (const Lane& lane : result.lanes) {
      json line = {{"event", "round"}, {"round", round}, {"order", lane.label}};
      line.update(as_json(lane.bounds[round]));
      print(line);
    }
    std::fflush(stdout);
  }

  void end(const HerdResult& result) override {
    json orders = json::array();
    for (const Lane& lane : result.lanes) {
      const Gain gain = gain_of(result, lane);
      json order = {{"order", lane.label}};
      order.update(as_json(lane.bounds.back()));
      order["times_below_random"] = {{"l2", gain.l2}, {"linf", gain.linf}};
      orders.push_back(std::move(order));
    }
    print({{"event", "summary"},
           {"version", version()},
           {"command", options_.command_line},
           {"source", options_.file.empty() ? "generated" : options_.file},
           {"dtype", result.dtype},
           {"examples", result.examples},
           {"dim", result.dim},
           {"not_finite", result.not_finite},
           {"shapes", options_.shapes},
           {"rounds", options_.rounds},
           {"batch", options_.batch},
           {"seed", options_.seed},
           {"random", as_json(result.random)},
           {"random_orders", kRandomOrders},
           {"orders", orders}});
  }

 private:
  /// Paths need not be UTF-8; JSON must be.
  static void print(const json& line) {
    fmt::print("{}\n", line.dump(-1, ' ', false, json::error_handler_t::replace));
  }

  HerdOptions options_;
};

}  // namespace

Gain gain_of(const HerdResult& result, const Lane& lane) {
  const HerdingBound& last = lane.bounds.back();
  return {result.random.l2 / last.l2, result.random.linf / last.linf};
}

std::string verdict(const HerdResult& result, const Lane& lane) {
  const double mine = lane.bounds.back().linf;
  const double random = result.random.linf;
  const std::size_t rounds = lane.bounds.size() - 1;
  const std::string after =
      fmt::format("{}: after {} {}", lane.label, rounds, rounds == 1 ? "round" : "rounds");
  if (random == 0.0 && mine == 0.0) return after + " there is no prefix error, in this order or any other";
  const std::string figures =
      fmt::format("(l-infinity {} against {})", format_number(mine), format_number(random));
  const double gain = random / mine;
  if (gain > 0.95 && gain < 1.05)
    return fmt::format("{} the worst prefix error is about random's {}", after, figures);
  if (gain >= 1.0 && !std::isfinite(gain))
    return fmt::format("{} there is no prefix error left {}", after, figures);
  return fmt::format("{} the worst prefix error is {}x {} than random's {}", after,
                     format_gain(gain >= 1.0 ? gain : 1.0 / gain), gain >= 1.0 ? "smaller" : "larger",
                     figures);
}

std::unique_ptr<HerdPrinter> make_table_printer() { return std::make_unique<TablePrinter>(); }

std::unique_ptr<HerdPrinter> make_json_printer(const HerdOptions& options) {
  return std::make_unique<JsonPrinter>(options);
}

}  // namespace cdgrab::cli
