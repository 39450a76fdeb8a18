// SPDX-License-Identifier: Apache-2.0
// States whose values are possible one by one and not together: each once crashed, or was called our own
// fault.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/sampler.hpp"
#include "cdgrab/self_communicator.hpp"
#include "unit/temp_folder.hpp"
#include "workers/message.hpp"

namespace cdgrab {
namespace {

constexpr std::size_t kFewExamples = 8;
constexpr std::size_t kFewNumbers = 2;

struct Lie {
  std::string spec;
  std::string named;  ///< in the refusal
  std::function<void(State&)> change;
};

/// Without an entry, or a part of them.
void drop(State& state, std::string_view key) {
  State rest;
  for (const auto& [name, value] : state.entries())
    if (!name.starts_with(key)) std::visit([&, &name = name](const auto& v) { rest.set(name, v); }, value);
  state = rest;
}

template <class T>
void set(State& state, std::string_view key, const std::vector<T>& values) {
  state.set(key, std::span<const T>(values));
}

void set_bytes(State& state, std::string_view key, const Bytes& bytes) {
  state.set(key, Array{DType::kU8, {bytes.size()}, {bytes.begin(), bytes.end()}});
}

Bytes arrivals(std::uint32_t worker, std::vector<Index> positions, std::vector<Code> codes) {
  Message message;
  message.arrivals = {{worker, std::move(positions), std::move(codes)}};
  return encode_message(message);
}

TEST(HostileState, ASamplerRefusesNumbersThatDoNotFitTogether) {
  const std::vector<Lie> lies = {
      {"greedy", "record.dim", [](State& s) { s.set("record.dim", (std::int64_t{1} << 61) + 2); }},
      {"greedy", "record.dim", [](State& s) { s.set("record.dim", std::int64_t{-2}); }},
      {"pair; block=3", "balancer.in_block", [](State& s) { s.set("balancer.in_block", std::int64_t{3}); }},
      {"pair; sign=halving", "sign.tau", [](State& s) { s.set("sign.tau", -1.0); }},
      {"pair; sign=halving", "sign.decided", [](State& s) { s.set("sign.decided", std::int64_t{-1}); }},
      {"pair", "epoch", [](State& s) { s.set("epoch", std::numeric_limits<std::int64_t>::max()); }},
      {"pair", "input_dim", [](State& s) { s.set("input_dim", std::int64_t{3}); }},
      {"pair", "input_dim", [](State& s) { drop(s, "input_dim"); }},
      {"pair; every=2", "every=2", [](State& s) { s.set("epoch", std::int64_t{1}); }},
      {"pair", "balancer.waiting", [](State& s) { set<std::int64_t>(s, "balancer.waiting", {5}); }},
      {"recursive-pair; depth=1", "balancer.waiting",
       [](State& s) {
         set<std::int64_t>(s, "balancer.waiting", {2, -1, 2});
       }},
  };
  for (const auto& [text, named, change] : lies) {
    SCOPED_TRACE(text + ", " + named);
    Sampler sampler(kFewExamples, parse_spec(text));
    const std::vector<float> rows(3 * kFewNumbers, 1.0F);
    sampler.next(3);
    sampler.observe(Rows<float>{rows.data(), 3, kFewNumbers});
    State state = sampler.state();
    change(state);
    EXPECT_NE(test::message_of<StateMismatch>([&] { sampler.load(state); }).find(named), std::string::npos);
  }
}

TEST(HostileState, ASamplerOfManyWorkersRefusesWhatItsOwnWordsContradict) {
  const std::vector<Lie> lies = {
      {"cd-pair", "outgoing.arrivals",
       [](State& s) { set_bytes(s, "outgoing.arrivals", arrivals(9, {0}, {1})); }},
      {"cd-pair", "outgoing.arrivals",
       [](State& s) { set_bytes(s, "outgoing.arrivals", arrivals(0, {9}, {1})); }},
      {"cd-pair", "outgoing.arrivals",
       [](State& s) {
         set_bytes(s, "outgoing.arrivals", arrivals(0, {1, 2}, {1}));
       }},
      {"cd-pair", "epoch", [](State& s) { s.set("epoch", std::numeric_limits<std::int64_t>::max()); }},
      {"cd-pair", "step", [](State& s) { s.set("step", std::numeric_limits<std::int64_t>::max()); }},
      {"cd-pair", "lengths", [](State& s) { set_bytes(s, "outgoing.0", Bytes(3)); }},
      {"cd-pair", "lanes.carries",
       [](State& s) {
         set<std::int64_t>(s, "lanes.carries", {2, -1});
       }},
      {"cd-pair", "geometry.dim", [](State& s) { s.set("geometry.dim", std::int64_t{1} << 50); }},
      {"id-pair", "geometry.dim", [](State& s) { s.set("input_dim", std::int64_t{7}); }},
      {"cd-pair", "waiting", [](State& s) { s.set("worker.1.waiting", std::int64_t{0}); }},
      {"id-pair", "worker.0.geometry.dim", [](State& s) { drop(s, "worker.0.geometry.dim"); }},
      {"id-pair", "worker.0.waiting", [](State& s) { s.set("worker.0.waiting", std::int64_t{3}); }},
      {"id-pair", "balancer.waiting",
       [](State& s) { set<std::int64_t>(s, "worker.0.balancer.waiting", {3}); }},
  };
  for (const auto& [text, named, change] : lies) {
    SCOPED_TRACE(text + ", " + named);
    SelfCommunicator alone;
    DistributedSampler sampler(Shares::strided(kFewExamples, 2), parse_spec(text), alone);
    const std::vector<float> rows(3 * kFewNumbers, 1.0F);
    for (std::size_t worker = 0; worker < 2; ++worker) {
      sampler.next(worker, 3);
      sampler.deposit(worker, Rows<float>{rows.data(), 3, kFewNumbers});
    }
    const State before = sampler.local_state();
    State state = before;
    change(state);
    EXPECT_NE(test::message_of<StateMismatch>([&] { sampler.load(state); }).find(named), std::string::npos);
    EXPECT_EQ(sampler.local_state(), before);
    sampler.step();
    sampler.end_epoch();
  }
}

}  // namespace
}  // namespace cdgrab
