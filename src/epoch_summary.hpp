// SPDX-License-Identifier: Apache-2.0
// What samplers say of an epoch under way.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cdgrab/sampler.hpp"
#include "epoch.hpp"

namespace cdgrab {

inline EpochReport report_of(const Epoch& epoch, std::uint64_t number) {
  EpochReport report;
  report.epoch = number;
  for (const Code code : epoch.codes()) {
    if (code == kUnobserved) ++report.unobserved;
    if (code == kNotFinite) ++report.not_finite;
    if (code % 2 == 1 && code < kNotFinite) ++report.unpaired;
  }
  report.observed = epoch.units() - report.unobserved;
  return report;
}

/// Where training stands: the oldest example that is not observed, or `handed` if nothing is being observed.
inline Position trained_position_of(const Epoch& epoch, const Position& handed, bool balances) {
  if (!balances && epoch.observed() == 0) return handed;
  return {handed.epoch, std::min<std::uint64_t>(epoch.observed_prefix(), handed.handed_out)};
}

}  // namespace cdgrab
