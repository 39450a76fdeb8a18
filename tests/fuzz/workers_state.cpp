// SPDX-License-Identifier: Apache-2.0
// The same as sampler_state for the sampler of many workers: a state of all ranks or of one, loaded by as
// many workers or by others.
#include <array>
#include <string_view>
#include <vector>

#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/self_communicator.hpp"
#include "fuzz/any_file.hpp"
#include "fuzz/edits.hpp"

using namespace cdgrab;

namespace {

constexpr std::size_t kExamples = 13;
constexpr std::size_t kDim = 3;

constexpr std::array<std::string_view, 6> kSpecs = {
    "cd-pair",         "cd-pair; sign=halving",  "cd-pair; unit=2",
    "id-pair; unit=2", "id-pair; sign=walk,c=3", "d-rr"};

void deposit(DistributedSampler& sampler, std::size_t worker, std::size_t handed, std::size_t observed) {
  sampler.next(worker, handed);
  observed = std::min(observed, sampler.outstanding(worker));
  const std::vector<float> rows = fuzz::numbers(observed * kDim);
  sampler.deposit(worker, Rows<float>{rows.data(), observed, kDim});
}

bool has_left(const DistributedSampler& sampler) {
  for (std::size_t w = 0; w < sampler.workers(); ++w)
    if (!sampler.upcoming(w, 1).empty()) return true;
  return false;
}

/// Every worker by another amount, then a round.
void step(DistributedSampler& sampler, fuzz::Script& script) {
  for (std::size_t w = 0; w < sampler.workers(); ++w) deposit(sampler, w, script.below(6), script.below(6));
}

void require_orders(const DistributedSampler& sampler) {
  std::vector<Index> all;
  for (std::size_t w = 0; w < sampler.workers(); ++w) {
    const std::vector<Index> order = sampler.order(w);
    all.insert(all.end(), order.begin(), order.end());
  }
  fuzz::require(is_permutation(all));
}

void go_on(DistributedSampler& sampler) {
  for (int epoch = 0; epoch < 2; ++epoch) {
    try {
      while (has_left(sampler)) {
        for (std::size_t w = 0; w < sampler.workers(); ++w) deposit(sampler, w, 3, 2);
        sampler.step();
      }
    } catch (const UserError&) {  // rows of another kind than the state's
    } catch (const StateMismatch&) {
    }
    sampler.end_epoch();
    require_orders(sampler);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Script script({data, size});
  const Spec spec = parse_spec(kSpecs[script.below(kSpecs.size())]);
  SelfCommunicator alone;
  const DistributedOptions options{.seed = 5};
  const std::size_t workers = 1 + script.below(4);
  DistributedSampler writer(Shares::strided(kExamples, workers), spec, alone, options);
  for (std::size_t steps = script.below(8); steps > 0; --steps) {
    if (!has_left(writer)) writer.end_epoch();
    step(writer, script);
    if (script.below(3) != 0) writer.step();
  }
  const bool local = script.flip();
  const std::size_t readers = script.below(3) == 0 ? 1 + script.below(4) : workers;
  const State state = fuzz::edited(local ? writer.local_state() : writer.save(), script);
  DistributedSampler reader(Shares::strided(kExamples, readers), spec, alone, options);
  deposit(reader, 0, 3, 2);
  const State before = reader.local_state();
  try {
    reader.load(state);
  } catch (const StateMismatch&) {
    fuzz::require(reader.local_state() == before);
  }
  go_on(reader);
  return 0;
}
