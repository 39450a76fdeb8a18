// SPDX-License-Identifier: Apache-2.0
// A torch::data sampler that learns its next order from the loss:
//
//   cdgrab::torch::Sampler sampler(dataset_size, "pair");
//   auto loader = torch::data::make_data_loader(dataset, sampler, 64);
//   for (auto& batch : *loader) {
//     auto loss = ..;
//     sampler.observe(loss, batch.data.size(0));   // the one new line
//     optimizer.zero_grad(); loss.backward(); optimizer.step();
//   }
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cdgrab/sampler.hpp"
#include "cdgrab/torch/gradient_geometry.hpp"
#include "cdgrab/torch/turn.hpp"

namespace cdgrab::torch {

/// Seconds since construction, if SamplerOptions::record_timings is set.
struct ObserveTimings {
  double walk = 0.0;       ///< reading the graph, in observe()
  double gradients = 0.0;  ///< reading inputs and output gradients off the backward, forming rows
  double products = 0.0;   ///< of unformed gradients
  double signs = 0.0;      ///< deciding; for formed gradients products and update are here, in one pass
  double update = 0.0;     ///< of registers by unformed gradients
  double order = 0.0;      ///< making the next order
};

/// A handle: the copy that a loader takes and the one you keep are one sampler.
class Sampler : public ::torch::data::samplers::Sampler<> {
 public:
  Sampler(std::size_t examples, std::string_view spec, SamplerOptions options = {});

  /// A loader calls this when it starts an epoch. Begins the next one if anything was observed or
  /// everything was handed out; goes on after load(). The size cannot change: another one is refused.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  /// What a loader makes of the examples: batches of `size`, which next() is told anyway, 0 if not known; and
  /// whether it drops a last one that is smaller, so that a loaded epoch of which no more is left is over.
  void expect_batches(std::size_t size, bool drop_last);

  /// The gradients of the oldest `batch` examples handed out and not yet observed, read off the backward
  /// of `loss` (a scalar, or one number per example) when it runs.
  void observe(const at::Tensor& loss, std::int64_t batch, const ObserveOptions& options = {});
  /// The same for the examples named, one per row of the batch, in that order.
  void observe(const at::Tensor& loss, const std::vector<std::size_t>& examples,
               const ObserveOptions& options = {});
  /// Vectors you already have: one tensor of B x d, or one of B x .. per parameter.
  void observe_gradients(const std::vector<at::Tensor>& rows);
  void observe_gradients(const std::vector<at::Tensor>& rows, const std::vector<std::size_t>& examples);
  /// One vector for a whole unit, the oldest outstanding one: the .grad of these parameters, zero where there
  /// is none. For specs with unit=; batches that straddle units are refused.
  void observe_microbatch(const std::vector<at::Tensor>& parameters);

  void end_epoch();
  /// Observed losses whose backward never came; their examples count as unseen.
  [[nodiscard]] std::size_t missed_backwards() const;
  [[nodiscard]] ObserveTimings timings() const;
  /// The sampler behind the handle: orders, reports, diagnostics, state.
  [[nodiscard]] cdgrab::Sampler& core();
  /// What a caller from several threads holds during a call; the backward of an observed loss does by itself.
  [[nodiscard]] Turn& turn();

  /// Through torch archives; the same state as core().state().
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;
  /// core().load(state), and backwards under way belong to nobody.
  void load_state(const State& state);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace cdgrab::torch
