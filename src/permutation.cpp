// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/permutation.hpp"

#include <fmt/format.h>

#include <numeric>
#include <optional>
#include <string>

#include "cdgrab/error.hpp"

namespace cdgrab {
namespace {

// The first place whose entry is out of range or was met before.
std::optional<std::size_t> first_offence(std::span<const Index> order) {
  std::vector<bool> met(order.size());
  for (std::size_t t = 0; t < order.size(); ++t) {
    if (order[t] >= order.size() || met[order[t]]) return t;
    met[order[t]] = true;
  }
  return std::nullopt;
}

// The finaliser of splitmix64 (Steele, Lea, Flood, 2014).
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

std::vector<Index> identity_order(std::size_t n) {
  if (n > kMaxExamples) {
    throw UserError("identity_order", fmt::format("{} examples are too many; at most {} are allowed: order "
                                                  "groups of consecutive examples (unit=) instead",
                                                  n, kMaxExamples));
  }
  std::vector<Index> order(n);
  std::iota(order.begin(), order.end(), Index{0});
  return order;
}

bool is_permutation(std::span<const Index> order) { return !first_offence(order); }

void require_permutation(std::span<const Index> order, std::size_t n, std::string_view where) {
  if (order.size() != n) {
    throw UserError(where, fmt::format("the order has {} entries, but {} are to be ordered; give each of "
                                       "0..n-1 exactly once",
                                       order.size(), n));
  }
  const std::optional<std::size_t> offence = first_offence(order);
  if (!offence) return;
  const Index value = order[*offence];
  const std::string problem =
      value >= n ? std::string("is out of range") : std::string("appears for the second time");
  throw UserError(where, fmt::format("not a permutation: entry {} of the order, {}, {}; give each of 0..{} "
                                     "exactly once",
                                     *offence, value, problem, n - 1));
}

std::vector<Index> inverse_order(std::span<const Index> order) {
  std::vector<Index> inverse(order.size());
  for (std::size_t t = 0; t < order.size(); ++t) inverse[order[t]] = static_cast<Index>(t);
  return inverse;
}

// h = mix(n), then h = mix((h + golden ratio) xor entry) for each entry: values, never bytes, so the
// machine's endianness does not show.
std::uint64_t order_hash(std::span<const Index> order) {
  constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  std::uint64_t hash = mix(order.size() + kGoldenRatio);
  for (const Index entry : order) hash = mix((hash + kGoldenRatio) ^ entry);
  return hash;
}

}  // namespace cdgrab
