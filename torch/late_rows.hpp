// SPDX-License-Identifier: Apache-2.0
// Rows past the budget: formed once the backward is over, for some examples of the batch at a time.
#pragma once

#include <unordered_map>

#include "observation.hpp"

namespace cdgrab::torch {

/// Parts of a batch, to be looked at one after the other. Rows of a part are valid until the next is made.
class LateRows {
 public:
  /// `whole`: there is to be one part, as there is where no rows are late or cutting the batch would not pay.
  LateRows(Observed&& all, bool whole);

  /// The next part; as many as it takes until all examples have been in one.
  [[nodiscard]] Observed next();

 private:
  Observed all_;
  std::int64_t examples_;                           ///< of a part
  std::int64_t begin_ = 0;                          ///< of the next part
  std::unordered_map<std::size_t, Tensor> memory_;  ///< of the rows that are late, by their place in all_
};

}  // namespace cdgrab::torch
