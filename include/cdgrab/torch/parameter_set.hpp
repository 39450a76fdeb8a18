// SPDX-License-Identifier: Apache-2.0
// Which parameters count when a loss is observed, and what they are called in messages.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cdgrab::torch {

class ParameterSet {
 public:
  /// All that require gradients.
  ParameterSet() = default;
  /// Those whose names match `pattern`: names with * and ?, separated by commas, of which one that begins
  /// with ! takes away. "*.weight,!head.*". Throws UserError if none does.
  explicit ParameterSet(const ::torch::nn::Module& module, std::string_view pattern = "*");
  explicit ParameterSet(std::vector<std::pair<std::string, at::Tensor>> named,
                        std::string_view pattern = "*");

  /// Those that were named and count, as they were given; empty if none were named.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> named() const;
  [[nodiscard]] bool contains(const at::Tensor& parameter) const;
  /// Empty where it is not known.
  [[nodiscard]] std::string name(const at::Tensor& parameter) const;
  /// "fc1.weight (120x400)", or its shape alone where the name is not known.
  [[nodiscard]] std::string describe(const at::Tensor& parameter) const;

 private:
  struct Names;
  std::shared_ptr<const Names> names_;  ///< null: all
};

}  // namespace cdgrab::torch
