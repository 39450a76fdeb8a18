// SPDX-License-Identifier: Apache-2.0
// The sign rule (docs/math.md, section 1): +1 when <x,s> <= a*U, U uniform on [-1,1].
// The three rules differ only in a.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cdgrab {

class State;

enum class SignKind {
  kDeterministic,  ///< a = 0
  kWalk,           ///< a = c, the self-balancing walk
  kHalving,        ///< a adapts to the squared norms seen: kernel halving (KH-SGD)
};

struct SignOptions {
  SignKind kind = SignKind::kDeterministic;
  bool tie_plus = true;      ///< det: the sign of a product that is exactly 0
  double c = 30.0;           ///< walk: assumes |x| of order 1
  double delta = 0.5;        ///< halving: failure probability
  std::size_t epochs = 100;  ///< halving: planned epochs

  bool operator==(const SignOptions&) const = default;
};

/// Where a decision stands: the draw of U is a pure function of it, the seed and the epoch.
struct SignPlace {
  std::uint64_t position = 0;  ///< in the epoch's order, of the example that completes the decision
  std::uint32_t level = 0;     ///< of the tree
};

/// A sign rule during one epoch after another.
class SignRule {
 public:
  /// n examples are ordered in every epoch.
  SignRule(const SignOptions& options, std::uint64_t seed, std::size_t n);

  /// Whether decide() looks at the squared norm.
  [[nodiscard]] bool needs_norm() const { return options_.kind == SignKind::kHalving; }

  void begin_epoch(std::uint64_t epoch);

  /// +1 or -1 for a vector with <x,s> = product and |x|^2 = norm2.
  int decide(double product, double norm2, const SignPlace& place);

  void save(State& state) const;
  void load(const State& state);

 private:
  double threshold(double norm2);

  SignOptions options_;
  std::uint64_t seed_;
  std::size_t differences_;  ///< floor(n/2)
  std::uint64_t epoch_ = 0;
  std::uint64_t decided_ = 0;  ///< halving: differences met in this epoch
  double tau_ = 0.0;           ///< halving
};

}  // namespace cdgrab
