// SPDX-License-Identifier: Apache-2.0
// Memory for rows: much of it, and anew with every backward.
#pragma once

#include "autograd.hpp"

namespace cdgrab::torch {

/// As at::empty. What is large is asked for in large pages.
Tensor empty_rows(at::IntArrayRef shape, const at::TensorOptions& options);

/// What a step frees stays with the process, up to 64 MB, for the next step. Otherwise glibc may give it back
/// after every step, and every page of it comes at the price of a fault.
void keep_freed_memory();

}  // namespace cdgrab::torch
