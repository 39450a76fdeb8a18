// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/sign_rule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cdgrab/error.hpp"
#include "cdgrab/random.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab {

SignRule::SignRule(const SignOptions& options, std::uint64_t seed, std::size_t n)
    : options_(options), seed_(seed), differences_(n / 2) {}

void SignRule::begin_epoch(std::uint64_t epoch) {
  epoch_ = epoch;
  decided_ = 0;
  tau_ = 0.0;
}

/// Kernel halving's a (docs/math.md, section 1); moves tau on.
double SignRule::threshold(double norm2) {
  const double count = static_cast<double>(decided_);
  const double planned = 1.0 + std::log(static_cast<double>(options_.epochs));
  const double length = 1.0 + std::log(static_cast<double>(differences_));
  const double log_term =
      std::log(4.0 / options_.delta * planned * length * count) + std::log(static_cast<double>(epoch_ + 1));
  const double ratio = tau_ * log_term / norm2;
  const double root = std::sqrt(ratio);
  if (ratio <= 1.0) {
    tau_ = 2.0 * norm2;
  } else {
    tau_ += 2.0 * norm2 * std::max(0.0, log_term + 0.5 - root) / log_term;
  }
  return norm2 * std::max(1.0, root);
}

int SignRule::decide(double product, double norm2, const SignPlace& place) {
  double a = 0.0;
  if (options_.kind == SignKind::kWalk) a = options_.c;
  if (options_.kind == SignKind::kHalving) {
    ++decided_;
    if (norm2 > 0.0) a = threshold(norm2);
  }
  if (a == 0.0) {
    if (product == 0.0) return options_.tie_plus ? 1 : -1;
    return product < 0.0 ? 1 : -1;
  }
  const Stream stream{seed_, Purpose::kSign, epoch_, place.level};
  const double u = 2.0 * uniform(stream, place.position) - 1.0;
  return product <= a * u ? 1 : -1;
}

void SignRule::save(State& state) const {
  if (options_.kind != SignKind::kHalving) return;
  state.set("sign.decided", static_cast<std::int64_t>(decided_));
  state.set("sign.tau", tau_);
}

void SignRule::load(const State& state) {
  if (options_.kind != SignKind::kHalving) return;
  const std::int64_t decided = state.integer("sign.decided");
  const double tau = state.number("sign.tau");
  if (decided < 0 || !(tau >= 0.0) || !std::isfinite(tau))
    throw StateMismatch("SignRule::load",
                        fmt::format("'{}' is {} and '{}' is {}; neither is negative, and both are finite",
                                    state.name("sign.decided"), decided, state.name("sign.tau"), tau));
  decided_ = static_cast<std::uint64_t>(decided);
  tau_ = tau;
}

}  // namespace cdgrab
