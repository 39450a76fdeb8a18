// SPDX-License-Identifier: Apache-2.0
// The sampler of many workers, which learns its next orders from their losses: one handle per rank.
//
//   cdgrab::torch::DistributedSampler sampler(cdgrab::Shares::strided(n, workers), "cd-pair", communicator);
//   auto loader = torch::data::make_data_loader(dataset, sampler, 64);   // a rank with one worker
//   for (auto& batch : *loader) {
//     auto loss = ..;
//     sampler.observe(loss, batch.data.size(0));
//     optimizer.zero_grad(); loss.backward(); ..average the gradients..; optimizer.step();
//     sampler.step();                           // a round with the other ranks; or step_after_backward()
//     once
//   }
//   sampler.end_epoch();
#pragma once

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cdgrab/communicator.hpp"
#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/torch/gradient_geometry.hpp"
#include "cdgrab/torch/turn.hpp"

namespace cdgrab::torch {

/// A handle: copies are one sampler. Which calls are collective, and what becomes of a sampler in which one
/// has failed, is said at cdgrab::DistributedSampler. A `worker` is one that this rank hosts; it need not be
/// named by a rank that hosts one.
///
/// Observed losses need a spec without unit=. With unit= or sketch= vectors are rows in memory; else layers
/// travel in whatever form takes fewer bytes (docs/design.md, section 9). All ranks observe the same model:
/// parameters are known by their order in the first backward or, where batches depend on different ones, by
/// their names (ObserveOptions::parameters).
class DistributedSampler : public ::torch::data::samplers::Sampler<> {
 public:
  using Worker = std::optional<std::size_t>;

  /// DistributedOptions::local_geometry is the handle's own business, and must be empty.
  DistributedSampler(Shares shares, std::string_view spec, std::shared_ptr<Communicator> communicator,
                     DistributedOptions options = {});

  // ---- handing out

  /// A loader of the one hosted worker calls this when it starts an epoch: begin().
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  /// The same for any number of hosted workers: core().begin(), which ends an epoch that was observed and is
  /// then collective; and the next examples of one, empty when its epoch is through.
  void begin();
  std::vector<std::size_t> next(std::size_t worker, std::size_t count);
  /// What a loader makes of the examples, as in Sampler.
  void expect_batches(std::size_t size, bool drop_last);

  // ---- observing: local; what was observed travels with the next round

  /// The gradients of the worker's oldest `batch` examples handed out and not yet observed, read off the
  /// backward of `loss` (a scalar, or one number per example) when it runs, and deposited.
  void observe(const at::Tensor& loss, std::int64_t batch, const ObserveOptions& options = {},
               Worker worker = {});
  /// The same for the examples named, one per row of the batch, in that order; numbers of the whole data set.
  void observe(const at::Tensor& loss, const std::vector<std::size_t>& examples,
               const ObserveOptions& options = {}, Worker worker = {});
  /// Vectors you already have: one tensor of B x d, or one of B x .. per parameter.
  void observe_gradients(const std::vector<at::Tensor>& rows, Worker worker = {});
  void observe_gradients(const std::vector<at::Tensor>& rows, const std::vector<std::size_t>& examples,
                         Worker worker = {});
  /// One vector for a whole unit, the oldest outstanding one: the .grad of these parameters, zero where there
  /// is none. For specs with unit=; average() does this and more.
  void observe_microbatch(const std::vector<at::Tensor>& parameters, Worker worker = {});

  // ---- rounds: collective

  /// What was deposited travels, and the signs fall of all pairs whose turn has come. Backwards that have not
  /// run take part in a later one.
  void step();
  /// From now on (or no more) a round is taken as soon as every hosted worker that is not through with its
  /// epoch has deposited since the last one: inside backward(), or inside observe_gradients(). Errors of the
  /// round come out there. A rank that hosts no worker takes none by itself: end_epoch() answers all.
  void step_after_backward(bool on = true);

  /// Gradient averaging and a round in one, for specs with unit= and `d-rr`: the tensors (parameters' .grad,
  /// say) of the one hosted worker become the means over all workers, in place, each weighted by the examples
  /// behind it, and count as the vector of its oldest outstanding unit. The same bits on all ranks and for
  /// any number of them.
  void average(const std::vector<at::Tensor>& gradients, double examples);
  /// The same for any number of hosted workers: the tensors and examples of each in the order of the workers,
  /// an empty list for one that has none this time. `mean` is written; its tensors have the shapes of the
  /// gradients, and say how long vectors are also where a rank has none.
  void average(const std::vector<std::vector<at::Tensor>>& gradients, const std::vector<double>& examples,
               const std::vector<at::Tensor>& mean);
  void end_epoch();

  /// Observed losses whose backward never came; their examples count as unseen.
  [[nodiscard]] std::size_t missed_backwards() const;
  /// Seconds since construction that observing and the rounds of step() took of the caller's thread.
  [[nodiscard]] double seconds() const;
  /// The one hosted worker. Throws UserError if they are not one.
  [[nodiscard]] std::size_t worker() const;
  /// The sampler behind the handle: shares, orders, order_hash(), reports, positions, and everything that is
  /// not above.
  [[nodiscard]] cdgrab::DistributedSampler& core();
  /// What a caller from several threads holds during a call; the backward of an observed loss does by itself.
  [[nodiscard]] Turn& turn();
  [[nodiscard]] Communicator& communicator();

  // ---- states

  /// Collective: the same on every rank and for any number of ranks. core().save().
  [[nodiscard]] State save_state();
  /// What this rank has, without a word to others. core().local_state().
  [[nodiscard]] State local_state();
  /// core().load(state), and backwards under way belong to nobody. Local, on all ranks.
  LoadReport load_state(const State& state);
  /// Through torch archives: save_state(), which is collective, and load_state().
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace cdgrab::torch
