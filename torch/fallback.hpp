// SPDX-License-Identifier: Apache-2.0
// For nodes that no rule covers: the node itself, applied to what arrives for one example at a time.
#pragma once

#include <vector>

#include "contribution.hpp"
#include "rules.hpp"

namespace cdgrab::torch {

/// What the node sends along each of the edges, as rows (B, numel) in the edge's order of entries: exact,
/// since a backward is linear in what arrives. `moment.slot` is not looked at. Throws UserError if the node
/// sends something of one example to the place of another, so that what is below it cannot be told apart.
std::vector<Contribution> apply_by_example(const Moment& moment, const std::vector<std::size_t>& slots);

/// What the rows of these edges take.
std::size_t bytes_by_example(const Moment& moment, const std::vector<std::size_t>& slots);

}  // namespace cdgrab::torch
