// SPDX-License-Identifier: Apache-2.0
// How the examples are dealt to workers. Knows no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "cdgrab/shares.hpp"

namespace cdgrab::training {

/// Shares are of one size, or of two that differ by 1, whatever the kind.
enum class SplitKind {
  kEven,       ///< in turn, so workers hold alike examples
  kLabel,      ///< sorted by label and cut: a worker holds few labels
  kDirichlet,  ///< each worker's mixture of labels is drawn; the smaller alpha, the fewer labels it holds
};

struct Split {
  SplitKind kind = SplitKind::kEven;
  double alpha = 0.0;  ///< kDirichlet

  /// Whether it cannot be without labels.
  [[nodiscard]] bool by_label() const { return kind != SplitKind::kEven; }
};

/// "even", "label" or "dirichlet:ALPHA". Throws UserError.
Split parse_split(std::string_view text);

/// Every example exactly once; a pure function of the arguments. `labels`: one per example, from 0 on; may be
/// empty for kEven.
Shares deal(const Split& split, std::size_t examples, std::size_t workers,
            std::span<const std::int64_t> labels, std::uint64_t seed);

}  // namespace cdgrab::training
