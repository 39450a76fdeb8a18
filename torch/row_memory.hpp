// SPDX-License-Identifier: Apache-2.0
// Memory for rows: much of it, and anew with every backward.
#pragma once

#include "autograd.hpp"

namespace cdgrab::torch {

/// As at::empty. What is large is asked for in large pages, where the system has them on request: otherwise
/// touching it for the first time takes as long as filling it.
Tensor empty_rows(at::IntArrayRef shape, const at::TensorOptions& options);

}  // namespace cdgrab::torch
