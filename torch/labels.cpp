// SPDX-License-Identifier: Apache-2.0
#include "labels.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace cdgrab::torch {

Examples examples_along(const Layout& layout, std::int64_t length, std::int64_t batch) {
  const std::int64_t rows = layout.rows(batch);
  Examples all(static_cast<std::size_t>(rows == 0 ? 0 : length));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / layout.inner % rows;
    all[i] = layout.labels == nullptr ? row : (*layout.labels)[static_cast<std::size_t>(row)];
  }
  return all;
}

Layout layout_of(std::int64_t dim, Examples examples, std::int64_t batch) {
  const auto length = static_cast<std::int64_t>(examples.size());
  const auto run = std::find_if(examples.begin(), examples.end(), [](std::int64_t e) { return e != 0; });
  const Layout regular{dim, run - examples.begin(), nullptr};
  if (regular.inner > 0 && length % (batch * regular.inner) == 0 &&
      examples_along(regular, length, batch) == examples)
    return regular;
  return {dim, 1, std::make_shared<const Examples>(std::move(examples))};
}

std::optional<std::int64_t> only_example(const Examples& examples) {
  std::int64_t only = kNobody;
  for (const std::int64_t example : examples)
    if (!assign(only, example)) return std::nullopt;
  return only == kNobody ? std::nullopt : std::optional(only);
}

bool assign(std::int64_t& to, std::int64_t example) {
  if (example == kNobody || to == example) return true;
  return std::exchange(to, example) == kNobody;
}

/// Without regard to what else they could be.
static std::optional<Layout> merged_as_they_are(const Layout& a, const Layout& b, at::IntArrayRef shape,
                                                std::int64_t batch) {
  if (a == b) return Layout{a.dim, a.inner, a.labels};
  const auto rank = static_cast<std::int64_t>(shape.size());
  if (a.dim >= rank || b.dim >= rank) return std::nullopt;
  const auto along = [&](const Layout& layout) {
    return examples_along(layout, shape[static_cast<std::size_t>(layout.dim)], batch);
  };
  Examples both = along(a);
  const Examples more = along(b);
  if (a.dim != b.dim) {
    // All of it is one example's: any dimension says so.
    const auto only = only_example(both);
    if (!only || only != only_example(more)) return std::nullopt;
    return layout_of(0, Examples(static_cast<std::size_t>(shape[0]), *only), batch);
  }
  for (std::size_t i = 0; i < both.size(); ++i)
    if (!assign(both[i], more[i])) return std::nullopt;
  return layout_of(a.dim, std::move(both), batch);
}

std::optional<Layout> merged(const Layout& a, const Layout& b, at::IntArrayRef shape, std::int64_t batch) {
  auto both = merged_as_they_are(a, b, shape, batch);
  if (a.otherwise == nullptr && b.otherwise == nullptr) return both;
  // Of pieces before this one it may be known already that they were cut out.
  const Layout& other_a = a.otherwise == nullptr ? a : *a.otherwise;
  const Layout& other_b = b.otherwise == nullptr ? b : *b.otherwise;
  auto other = merged_as_they_are(other_a, other_b, shape, batch);
  if (!both) return other;
  if (other) both->otherwise = std::make_shared<const Layout>(std::move(*other));
  return both;
}

std::optional<std::pair<std::size_t, Examples>> along_one(const Examples& flat, at::IntArrayRef shape) {
  std::optional<std::pair<std::size_t, Examples>> found;
  std::int64_t below = static_cast<std::int64_t>(flat.size());
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (flat.empty()) break;
    below /= shape[dim];
    Examples along(static_cast<std::size_t>(shape[dim]), kNobody);
    bool alone = true;
    for (std::size_t i = 0; i < flat.size() && alone; ++i)
      alone =
          assign(along[static_cast<std::size_t>(static_cast<std::int64_t>(i) / below % shape[dim])], flat[i]);
    // Of several, all entries are one example's: a dimension of length 1 says least.
    if (alone && (!found || found->second.size() == 1)) found.emplace(dim, std::move(along));
  }
  if (flat.empty())
    for (std::size_t dim = 0; dim < shape.size(); ++dim)
      if (shape[dim] == 0) return std::pair(dim, Examples());
  return found;
}

std::int64_t Groups::longest() const {
  return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
}

Groups groups_of(const Examples& examples, std::int64_t batch, const Tensor& like) {
  Groups groups{{}, std::vector<std::int64_t>(static_cast<std::size_t>(batch), 0)};
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < examples.size(); ++i) {
    if (examples[i] == kNobody) continue;
    ++groups.counts[static_cast<std::size_t>(examples[i])];
    order.push_back(static_cast<std::int64_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return examples[static_cast<std::size_t>(a)] < examples[static_cast<std::size_t>(b)];
  });
  groups.order = at::tensor(order, at::kLong).to(like.device());
  return groups;
}

Tensor padded_by(const Groups& groups, const Tensor& tensor, std::int64_t dim) {
  const std::int64_t longest = std::max<std::int64_t>(groups.longest(), 1);
  const auto batch = static_cast<std::int64_t>(groups.counts.size());
  std::vector<std::int64_t> places;
  for (std::size_t b = 0; b < groups.counts.size(); ++b)
    for (std::int64_t k = 0; k < groups.counts[b]; ++k)
      places.push_back(static_cast<std::int64_t>(b) * longest + k);
  const Tensor entries = tensor.movedim(dim, 0).index_select(0, groups.order);
  std::vector<std::int64_t> shape = entries.sizes().vec();
  shape[0] = batch * longest;
  const Tensor padded = at::zeros(shape, tensor.options())
                            .index_copy_(0, at::tensor(places, at::kLong).to(tensor.device()), entries);
  return padded.unflatten(0, {batch, longest});
}

}  // namespace cdgrab::torch
