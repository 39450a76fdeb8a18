// SPDX-License-Identifier: Apache-2.0
// What is known after an epoch: a line of metrics.jsonl.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cdgrab/sampler.hpp"

namespace cdgrab::training {

/// How good some weights are.
struct Score {
  double loss = 0.0;    ///< the objective over all training examples, the penalty included
  double metric = 0.0;  ///< of the validation examples

  bool operator==(const Score&) const = default;
};

struct Seconds {
  double training = 0.0;   ///< forward, backward and the optimizer's step
  double observing = 0.0;  ///< gradients per example, signs, the next order
  double evaluating = 0.0;
  double ordering = 0.0;  ///< the part of `observing` that made the next order
};

struct EpochRecord {
  std::size_t epoch = 0;         ///< epochs done; 0 is before the first step
  Score last;                    ///< of the weights after it
  std::optional<Score> average;  ///< of the tail average, where it has begun
  double lr = 0.0;               ///< of the last step
  Seconds seconds;               ///< of this epoch
  std::optional<HerdingReport> herding;
  bool diverged = false;  ///< a loss was not finite; the run ends here
};

nlohmann::ordered_json to_json(const EpochRecord& record, const std::string& metric);
/// Throws FileError for what to_json did not write.
EpochRecord record_from_json(const nlohmann::ordered_json& json);
/// A list of them, from its text.
std::vector<EpochRecord> parse_records(std::string_view text);

}  // namespace cdgrab::training
