// SPDX-License-Identifier: Apache-2.0
// Resume equals never stopping for gradients that are read off a backward, before every step and through
// torch archives; and a million such steps at flat memory.
#include "torture/every_step.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "cdgrab/torch/sampler.hpp"
#include "models/models.hpp"
#include "torture/at_length.hpp"
#include "torture/soak.hpp"

namespace cdgrab::torch {
namespace {

using at::Tensor;
using models::Case;

struct World {
  Case model;
  Tensor x;
  Tensor y;
  std::size_t examples;
  std::size_t batch;  ///< that of a unit, where there are units
};

World make_world(Case model, std::size_t examples, std::size_t batch) {
  auto [x, y] = model.data(static_cast<std::int64_t>(examples));
  return {std::move(model), x, y, examples, batch};
}

Tensor loss_of(const World& world, const std::vector<std::size_t>& examples) {
  const Tensor index = at::tensor(std::vector<std::int64_t>(examples.begin(), examples.end()), at::kLong);
  return world.model.loss(world.x.index_select(0, index), world.y.index_select(0, index));
}

/// The examples' own gradients, or one for a unit.
void train(const World& world, Sampler& sampler, const std::vector<std::size_t>& examples) {
  const Tensor loss = loss_of(world, examples);
  if (sampler.core().spec().unit == 1) {
    sampler.observe(loss, static_cast<std::int64_t>(examples.size()));
    return loss.backward();
  }
  for (const Tensor& p : world.model.parameters) p.mutable_grad() = Tensor();
  loss.backward();
  sampler.observe_microbatch(world.model.parameters);
}

class GhostPlay {
 public:
  GhostPlay(const World& world, const std::string& spec) : world_(world), sampler_(world.examples, spec) {}

  [[nodiscard]] bool over() {
    return sampler_.core().epoch() == 1 && sampler_.core().position().handed_out == world_.examples;
  }
  std::vector<Index> step() {
    if (std::exchange(fresh_, false)) sampler_.reset();
    auto examples = sampler_.next(world_.batch);
    if (!examples) {
      sampler_.reset();
      examples = sampler_.next(world_.batch);
    }
    train(world_, sampler_, *examples);
    return {examples->begin(), examples->end()};
  }
  std::vector<std::byte> save() {
    ::torch::serialize::OutputArchive out;
    sampler_.save(out);
    std::stringstream stream;
    out.save_to(stream);
    const std::string text = stream.str();
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }
  void load(std::span<const std::byte> bytes) {
    std::stringstream stream(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    ::torch::serialize::InputArchive in;
    in.load_from(stream);
    sampler_.load(in);
    fresh_ = true;
  }

 private:
  const World& world_;
  bool fresh_ = true;
  Sampler sampler_;
};

TEST(TorchResumeAtEveryStep, OfEveryBalancerOnGradientsThatAreNotFormed) {
  ::torch::manual_seed(5);
  std::size_t resumes = 0;
  for (const char* text :
       {"pair", "pair; tie=minus", "pair; sign=walk,c=3", "pair; sign=halving", "pair; normalize", "mean",
        "mean; sign=walk,c=3", "mean; centring=ema", "batch", "recursive; depth=1", "recursive-pair; depth=1",
        "pair; sketch=kron:2", "pair; sketch=pca:2", "mean; sketch=gauss:5", "mean; every=2", "rr", "greedy"})
    for (const std::size_t unit : {1UL, 2UL, 3UL})
      for (const bool deep : {false, true}) {
        if (deep && !torture::at_length()) continue;
        const std::string spec = std::string(text) + "; unit=" + std::to_string(unit);
        SCOPED_TRACE(spec);
        // 13 examples in fours: the last batch is a single one.
        const World world = make_world(deep ? models::lenet() : models::mlp(), torture::at_length() ? 24 : 13,
                                       unit == 1 ? 4 : unit);
        resumes += torture::check_every_step([&] { return std::make_unique<GhostPlay>(world, spec); }, false);
        if (HasFailure()) return;
      }
  std::printf("%zu resumes\n", resumes);
}

TEST(TorchSoak, AMillionObservedBackwardsTakeNoMemory) {
  ::torch::nn::Linear net(4, 2);
  const World world{
      {"linear", net->parameters(),
       [&](const Tensor& x, const Tensor& y) { return at::cross_entropy_loss(net(x), y); }, nullptr},
      at::randn({64, 4}),
      at::randint(2, {64}, at::kLong),
      64,
      4};
  Sampler sampler(64, "pair");
  torture::expect_flat_memory("pair, observed backwards", 3'000, [&] {
    auto examples = sampler.next(world.batch);
    if (!examples) {
      sampler.reset();
      examples = sampler.next(world.batch);
    }
    train(world, sampler, *examples);
  });
}

}  // namespace
}  // namespace cdgrab::torch
