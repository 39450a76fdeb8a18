// SPDX-License-Identifier: Apache-2.0
// Kernels are compiled once per instruction set: tests of them run on all that this machine has.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace cdgrab {

template <class Check>
void on_every_target(const Check& check) {
  const auto targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const auto target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace cdgrab
