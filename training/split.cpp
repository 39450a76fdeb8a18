// SPDX-License-Identifier: Apache-2.0
#include "training/split.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <vector>

#include "cdgrab/error.hpp"
#include "cdgrab/random.hpp"

namespace cdgrab::training {
namespace {

constexpr std::string_view kDirichlet = "dirichlet:";

// Levels of the data's purpose; others use the low ones.
constexpr std::uint32_t kMixtures = 16;
constexpr std::uint32_t kDraws = 17;
constexpr std::uint32_t kMembers = 18;

/// Of `examples` cut into `workers` pieces, the sizes of which differ by 1 at most.
std::size_t begin_of(std::size_t worker, std::size_t examples, std::size_t workers) {
  return worker * examples / workers;
}

Shares by_label(std::size_t workers, std::span<const std::int64_t> labels) {
  std::vector<Index> sorted(labels.size());
  std::iota(sorted.begin(), sorted.end(), Index{0});
  std::stable_sort(sorted.begin(), sorted.end(), [&](Index a, Index b) { return labels[a] < labels[b]; });
  std::vector<std::vector<Index>> shares(workers);
  for (std::size_t w = 0; w < workers; ++w)
    shares[w].assign(sorted.begin() + static_cast<std::ptrdiff_t>(begin_of(w, labels.size(), workers)),
                     sorted.begin() + static_cast<std::ptrdiff_t>(begin_of(w + 1, labels.size(), workers)));
  return {labels.size(), shares};
}

/// The logarithm of a draw of Gamma(shape, 1), also where the draw itself is no number above 0 any more:
/// Marsaglia and Tsang (2000) for shape + 1, times u^(1/shape).
double log_gamma_draw(const Stream& stream, std::uint64_t place, double shape) {
  const double d = shape + 2.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  constexpr std::uint64_t kTries = 64;  // of which one is needed nearly always
  const std::uint64_t first = place * (2 * kTries + 1);
  const double boost = std::log1p(-uniform(stream, first)) / shape;
  for (std::uint64_t k = 0; k < kTries; ++k) {
    const double x = normal(stream, first + 1 + 2 * k);
    const double v = std::pow(1.0 + c * x, 3.0);
    if (v <= 0.0) continue;
    const double u = 1.0 - uniform(stream, first + 2 + 2 * k);
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return std::log(d * v) + boost;
  }
  return std::log(d) + boost;
}

/// Of each label, for one worker: a draw of Dirichlet(alpha, .., alpha).
std::vector<double> mixture(std::size_t labels, double alpha, std::uint64_t seed, std::size_t worker) {
  const Stream stream{seed, Purpose::kData, worker, kMixtures};
  std::vector<double> share(labels);
  for (std::size_t c = 0; c < labels; ++c) share[c] = log_gamma_draw(stream, c, alpha);
  const double largest = *std::max_element(share.begin(), share.end());
  for (double& s : share) s = std::exp(s - largest);
  return share;
}

/// The label of one example: of those of which some are left, by the worker's mixture; if that names none of
/// them, the one of which most are left.
std::size_t draw_label(std::span<const double> share, const std::vector<std::vector<Index>>& left, double u) {
  double sum = 0.0;
  for (std::size_t c = 0; c < share.size(); ++c) sum += left[c].empty() ? 0.0 : share[c];
  double at = u * sum;
  std::size_t chosen = share.size();
  for (std::size_t c = 0; c < share.size() && sum > 0.0; ++c) {
    if (left[c].empty() || share[c] == 0.0) continue;
    chosen = c;
    at -= share[c];
    if (at < 0.0) break;
  }
  if (chosen < share.size()) return chosen;
  const auto most = std::max_element(left.begin(), left.end(),
                                     [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return static_cast<std::size_t>(most - left.begin());
}

/// One worker after the other draws as many examples as it gets.
Shares by_mixtures(double alpha, std::size_t workers, std::span<const std::int64_t> labels,
                   std::uint64_t seed) {
  const std::size_t n = labels.size();
  const std::size_t kinds =
      n == 0 ? 1 : static_cast<std::size_t>(*std::max_element(labels.begin(), labels.end())) + 1;
  std::vector<std::vector<Index>> left(kinds);  // in random order
  for (const Index i : random_permutation({seed, Purpose::kData, 0, kMembers}, n))
    left[static_cast<std::size_t>(labels[i])].push_back(i);
  std::vector<std::vector<Index>> shares(workers);
  for (std::size_t w = 0; w < workers; ++w) {
    const std::vector<double> share = mixture(kinds, alpha, seed, w);
    const std::size_t size = begin_of(w + 1, n, workers) - begin_of(w, n, workers);
    for (std::size_t k = 0; k < size; ++k) {
      const std::size_t label = draw_label(share, left, uniform({seed, Purpose::kData, w, kDraws}, k));
      shares[w].push_back(left[label].back());
      left[label].pop_back();
    }
  }
  return {n, shares};
}

}  // namespace

Split parse_split(std::string_view text) {
  if (text == "even") return {};
  if (text == "label") return {SplitKind::kLabel, 0.0};
  if (text.starts_with(kDirichlet)) {
    Split split{SplitKind::kDirichlet, 0.0};
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + kDirichlet.size(), end, split.alpha);
    if (error == std::errc{} && rest == end && split.alpha > 0.0 && std::isfinite(split.alpha)) return split;
  }
  throw UserError("--split",
                  fmt::format("`{}` is no way to deal examples; allowed: even, label, dirichlet:ALPHA with "
                              "a number above 0, as in dirichlet:0.1",
                              text));
}

Shares deal(const Split& split, std::size_t examples, std::size_t workers,
            std::span<const std::int64_t> labels, std::uint64_t seed) {
  if (split.by_label() && labels.size() != examples)
    throw InvariantError("deal", fmt::format("{} labels of {} examples", labels.size(), examples));
  const Shares even = Shares::strided(examples, workers);  // checks the number of workers
  switch (split.kind) {
    case SplitKind::kLabel:
      return by_label(workers, labels);
    case SplitKind::kDirichlet:
      return by_mixtures(split.alpha, workers, labels, seed);
    case SplitKind::kEven:
      break;
  }
  return even;
}

}  // namespace cdgrab::training
