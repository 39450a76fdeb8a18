// SPDX-License-Identifier: Apache-2.0
#include "late_rows.hpp"

#include <algorithm>
#include <utility>

#include "row_memory.hpp"

namespace cdgrab::torch {
namespace {

/// As many vectors meet in one pass of a dense geometry: two differences.
constexpr std::int64_t kGroup = 4;

bool is_late(const ParameterGradients& one) {
  return one.parameter.is_cpu() && !one.gradients.is_rows() && one.gradients.prefers_rows();
}

bool are_lookups(const Contribution& gradients) {
  const std::vector<Factors>& uses = gradients.uses();
  return std::all_of(uses.begin(), uses.end(), [](const Factors& f) { return f.is_lookup(); });
}

/// What stays factors meets whole registers anew in every part, but for tables: were these more than is late
/// in it, that would cost more than parts save.
std::int64_t examples_of_a_part(const Observed& all) {
  std::size_t late = 0;
  std::size_t met = 0;
  for (const ParameterGradients& one : all.parameters) {
    if (one.gradients.is_rows()) continue;
    const std::size_t bytes = one.gradients.row_bytes() / static_cast<std::size_t>(all.batch);
    if (is_late(one))
      late += bytes;
    else if (!are_lookups(one.gradients))
      met += bytes;
  }
  if (late == 0 || kGroup * late > all.budget) return all.batch;
  const auto fits = [&](std::int64_t examples) {
    const std::size_t bytes = static_cast<std::size_t>(examples) * late;
    return bytes <= all.budget && Contribution::stays_in_cache(bytes);
  };
  std::int64_t examples = kGroup;
  while (examples < all.batch && fits(examples + kGroup)) examples += kGroup;
  return met > static_cast<std::size_t>(examples) * late / 4 ? all.batch : std::min(examples, all.batch);
}

}  // namespace

LateRows::LateRows(Observed&& all, bool whole)
    : all_(std::move(all)), examples_(whole ? all_.batch : examples_of_a_part(all_)) {
  for (std::size_t k = 0; k < all_.parameters.size(); ++k) {
    if (!is_late(all_.parameters[k])) continue;
    Contribution& gradients = all_.parameters[k].gradients;
    const bool whole_rows = examples_ == all_.batch;
    if (whole_rows && gradients.row_bytes() > all_.budget) continue;
    const Tensor memory = empty_rows({examples_, gradients.entries()}, gradients.options());
    if (!whole_rows) {
      memory_[k] = memory;
      continue;
    }
    all_.budget -= gradients.row_bytes();
    gradients.form_in(memory, gradients.owed());
  }
}

Observed LateRows::next() {
  const std::int64_t begin = std::exchange(begin_, std::min(begin_ + examples_, all_.batch));
  if (examples_ == all_.batch) return std::move(all_);
  Observed some;
  some.batch = begin_ - begin;
  for (std::size_t k = 0; k < all_.parameters.size(); ++k) {
    const ParameterGradients& one = all_.parameters[k];
    Contribution gradients = one.gradients.narrowed(begin, begin_);
    if (const auto memory = memory_.find(k); memory != memory_.end())
      gradients.form_in(memory->second, one.gradients.owed());
    some.parameters.push_back({one.parameter, std::move(gradients), one.name, one.rule});
  }
  return some;
}

}  // namespace cdgrab::torch
