// SPDX-License-Identifier: Apache-2.0
// A state of a sampler, with some values changed, is refused and leaves the sampler as it was, or is taken
// and every order after it is one. The input is a script: which sampler, how far it went, what is changed.
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "cdgrab/sampler.hpp"
#include "fuzz/any_file.hpp"
#include "fuzz/edits.hpp"

using namespace cdgrab;

namespace {

constexpr std::size_t kExamples = 13;
constexpr std::size_t kDim = 3;

constexpr std::array<std::string_view, 16> kSpecs = {"pair",
                                                     "mean",
                                                     "mean; centring=ema",
                                                     "mean; sign=walk,c=3; normalize",
                                                     "pair; sign=halving",
                                                     "batch; block=4",
                                                     "batch",
                                                     "pair; block=3; every=2",
                                                     "recursive; depth=2",
                                                     "recursive-pair; depth=2",
                                                     "recursive-pair; depth=1; unit=2",
                                                     "greedy",
                                                     "score",
                                                     "swr",
                                                     "block-reversal; block=4",
                                                     "pair; sketch=sparse:2"};

/// Hands out so many examples and observes so many units of those that wait.
void step(Sampler& sampler, std::size_t handed, std::size_t observed) {
  sampler.next(handed);
  observed = std::min(observed, sampler.outstanding());
  const std::vector<float> rows = fuzz::numbers(observed * kDim);
  sampler.observe(Rows<float>{rows.data(), observed, kDim});
}

/// Two epochs on; whoever wrote the state, each order is one.
void go_on(Sampler& sampler) {
  for (int epoch = 0; epoch < 2; ++epoch) {
    try {
      while (!sampler.upcoming(1).empty()) step(sampler, 5, 4);
    } catch (const UserError&) {  // rows of another kind than the state's
    } catch (const StateMismatch&) {
    }
    sampler.end_epoch();
    const std::vector<Index> order(sampler.order().begin(), sampler.order().end());
    fuzz::require(sampler.spec().name == OrderName::kWithReplacement ? order.size() == sampler.units()
                                                                     : is_permutation(order));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Script script({data, size});
  const Spec spec = parse_spec(kSpecs[script.below(kSpecs.size())]);
  SamplerOptions options{.seed = 5, .record_herding = script.flip(), .record_norms = script.flip()};
  if (spec.balances() && spec.sketch.kind != SketchKind::kNone) options.record_herding = false;
  Sampler writer(kExamples, spec, options);
  for (std::size_t steps = script.below(8); steps > 0; --steps) {
    if (writer.upcoming(1).empty()) writer.end_epoch();
    step(writer, script.below(8), script.below(8));
  }
  const State state = fuzz::edited(writer.state(), script);
  Sampler reader(kExamples, spec, std::move(options));
  step(reader, 3, 2);
  const State before = reader.state();
  try {
    reader.load(state);
  } catch (const StateMismatch&) {
    fuzz::require(reader.state() == before);
  }
  go_on(reader);
  return 0;
}
