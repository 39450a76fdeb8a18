// SPDX-License-Identifier: Apache-2.0
// What must never change by accident: files of every format version still load and go on to the same
// orders, and every spec still gives the same orders for a seed. To write the tables and the files anew
// after a change that is meant to change them:
//   CDGRAB_GOLDEN=/tmp/golden build/release/bin/cdgrab_golden_tests
// prints the tables of this file and writes the state files into that folder.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/npy.hpp"
#include "cdgrab/random.hpp"
#include "cdgrab/sampler.hpp"
#include "cdgrab/self_communicator.hpp"
#include "property/runner.hpp"
#include "unit/temp_folder.hpp"

namespace cdgrab {
namespace {

namespace fs = std::filesystem;

/// The folder that CDGRAB_GOLDEN names; empty in an ordinary run.
fs::path golden_folder() {
  const char* folder = std::getenv("CDGRAB_GOLDEN");
  return folder == nullptr ? fs::path() : fs::path(folder);
}

/// Small integers, so that every product and sum is exact on every machine.
std::vector<float> integer_rows(std::size_t n, std::size_t dim) {
  std::vector<float> rows(n * dim);
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<float>(uniform_below({2026, Purpose::kData, 0, 0}, i, 7)) - 3.0F;
  return rows;
}

std::vector<Index> order_of(const Sampler& sampler) {
  return {sampler.order().begin(), sampler.order().end()};
}

// ---- state files

constexpr std::size_t kStateExamples = 11;
constexpr std::size_t kStateDim = 3;

struct GoldenState {
  std::string file;
  std::string spec;
  std::vector<Index> next;        ///< the order after the epoch that the file is in the middle of
  std::vector<Index> after_next;  ///< and after the one that follows
};

std::vector<GoldenState> golden_states() {
  return {
      // clang-format off
      {"pair.1.state", "pair", {10, 2, 4, 0, 7, 3, 8, 5, 9, 6, 1}, {10, 4, 7, 8, 6, 1, 9, 5, 3, 0, 2}},
      {"recursive-pair.1.state", "recursive-pair; depth=2", {10, 6, 5, 4, 3, 7, 2, 9, 8, 1, 0}, {10, 9, 1, 5, 7, 0, 6, 3, 8, 4, 2}},
      // clang-format on
  };
}

/// In the second epoch, with an odd number of examples observed and one more handed out.
Sampler half_way(const std::string& spec) {
  const std::vector<float> rows = integer_rows(kStateExamples, kStateDim);
  Sampler sampler(kStateExamples, parse_spec(spec), {.seed = 5});
  cases::step(sampler, rows, kStateDim, kStateExamples);
  sampler.end_epoch();
  cases::step(sampler, rows, kStateDim, 7);
  sampler.next(1);
  return sampler;
}

std::vector<Index> finish_epoch(Sampler& sampler) {
  const std::vector<float> rows = integer_rows(kStateExamples, kStateDim);
  sampler.next(kStateExamples);
  const std::size_t left = sampler.outstanding();
  const auto batch = cases::gather(rows, kStateDim, sampler.order().last(left));
  sampler.observe(Rows<float>{batch.data(), left, kStateDim});
  sampler.end_epoch();
  return order_of(sampler);
}

TEST(GoldenState, EveryVersionGoesOnToTheSameOrders) {
  for (const GoldenState& golden : golden_states()) {
    SCOPED_TRACE(golden.file);
    if (!golden_folder().empty()) {
      Sampler sampler = half_way(golden.spec);
      fs::create_directories(golden_folder());
      save_state(sampler.state(), golden_folder() / golden.file);
      const auto next = finish_epoch(sampler);
      const auto after_next = finish_epoch(sampler);
      fmt::print("      {{\"{}\", \"{}\", {{{}}}, {{{}}}}},\n", golden.file, golden.spec,
                 fmt::join(next, ", "), fmt::join(after_next, ", "));
      continue;
    }
    Sampler sampler(kStateExamples, parse_spec(golden.spec));
    sampler.load(load_state(fs::path(CDGRAB_GOLDEN_FOLDER) / golden.file));
    EXPECT_EQ(sampler.epoch(), 1U);
    EXPECT_EQ(sampler.position().handed_out, 8U);
    EXPECT_EQ(sampler.report().observed, 7U);
    EXPECT_GE(sampler.report().unpaired, 1U);
    EXPECT_EQ(finish_epoch(sampler), golden.next);
    EXPECT_EQ(finish_epoch(sampler), golden.after_next);
  }
}

TEST(GoldenState, TheLibraryStillWritesTheSameBytes) {
  if (!golden_folder().empty()) GTEST_SKIP() << "the files are being written";
  for (const GoldenState& golden : golden_states()) {
    SCOPED_TRACE(golden.file);
    const State stored = load_state(fs::path(CDGRAB_GOLDEN_FOLDER) / golden.file);
    EXPECT_EQ(encode_state(half_way(golden.spec).state()), encode_state(stored));
  }
}

TEST(GoldenState, NothingIsLoadedIntoAnotherSampler) {
  if (!golden_folder().empty()) GTEST_SKIP() << "the files are being written";
  const State stored = load_state(fs::path(CDGRAB_GOLDEN_FOLDER) / golden_states().front().file);
  Sampler other(kStateExamples + 1, parse_spec("pair"));
  const State before = other.state();
  EXPECT_THROW(other.load(stored), StateMismatch);
  EXPECT_EQ(other.state(), before);
}

// ---- orders

constexpr std::size_t kDim = 37;
constexpr std::size_t kBatch = 16;

/// order_hash of the orders of epochs 1, 2 and 3, seed 7. Only specs under which everything is exact on
/// integers (docs/math.md, section 7): a mean is one when n is a power of two.
struct GoldenOrder {
  std::string spec;
  std::size_t examples = 0;
  std::vector<std::uint64_t> hashes;
};

std::vector<GoldenOrder> golden_orders() {
  return {
      // clang-format off
      {"mean", 32, {0x3828b058d571e010, 0x0e0d1bf04e8e3020, 0x3fbf084d6e88ee00}},
      {"mean; centring=none", 101, {0x4d376edf55a05adf, 0x652a31a438c72941, 0xc4db0f819e8dc5eb}},
      {"mean; tie=minus", 32, {0x50b9c84c10af8eef, 0x6da9b78245af0faf, 0x8bbdfa4ab9399f36}},
      {"mean; centring=none; tie=minus", 101, {0x225bb19b86d57ce6, 0xa6834ff407e6db2f, 0x1c3b342a6bbcb02e}},
      {"mean; sign=walk,c=30", 32, {0x7b225db77e34a205, 0x84d3a07d07c63e55, 0x160e406038d44125}},
      {"mean; centring=none; sign=walk,c=30", 101, {0x35c60273314b5b42, 0x76cb74c072cad8fb, 0x4123aeb350f6181d}},
      {"pair", 101, {0x954b87cc64a537ef, 0x6f7cdebfac9ce46c, 0xbb43d4d4cd1095e2}},
      {"pair; tie=minus", 101, {0x788d829a25877b20, 0x774214d00c8465fe, 0x8614020ed7fec40c}},
      {"pair; sign=walk,c=30", 101, {0x954b87cc64a537ef, 0x584ac7dff5c84322, 0xb46be22bae6f8495}},
      {"pair; sign=halving", 101, {0x3da78b9c643599a4, 0x7df2fc3e555218f9, 0xcf46011216710a00}},
      {"pair; sign=halving,delta=0.1,epochs=10", 101, {0x3da78b9c643599a4, 0x7df2fc3e555218f9, 0xcf46011216710a00}},
      {"batch", 32, {0xa65d76e2ba3b48d0, 0x6cd81ff4e45b0ecd, 0xda99ac7c3a43dbc8}},
      {"batch; centring=none", 101, {0x92d31d5d287a1d34, 0x28342ebbc13782a6, 0x87aeb47d079b5276}},
      {"batch; tie=minus", 32, {0xd25bfb6db6ac5110, 0xba248dd02aa5db1a, 0x826c537841c923bf}},
      {"batch; centring=none; tie=minus", 101, {0x6bb0ff32fcced907, 0x6a3a0464b03d01bd, 0xdf71b6e5b77ba372}},
      {"batch; sign=walk,c=30", 32, {0x5c721f7adebd8a98, 0x4e9a7a134cf521e5, 0x1a2ca9cb4571e56d}},
      {"batch; centring=none; sign=walk,c=30", 101, {0x3d8e42ea4a15a6e8, 0x3ff5e254b11211dd, 0xb41e9e12c6e53561}},
      {"recursive", 32, {0x2f70e59c5a30f87e, 0xb7c6b333e0d1f791, 0xb7c6b333e0d1f791}},
      {"recursive; centring=none", 101, {0xd061f081880ea312, 0x22a045f12b608c82, 0x662c9da343de9a54}},
      {"recursive; tie=minus", 32, {0x71b329f2ef820b28, 0xad688340d96b3527, 0x6a93c055dae4fa74}},
      {"recursive; centring=none; tie=minus", 101, {0x446d931a40bccb89, 0xb73fd4cdaf89e944, 0x81a493f9ee0876b6}},
      {"recursive; sign=walk,c=30", 32, {0x33e81b7b105bde92, 0xdbe2468e83034f2a, 0x74c59b86702f8cff}},
      {"recursive; centring=none; sign=walk,c=30", 101, {0x8e08234a22ae010d, 0x6164b3235f795aba, 0xba1c86452e3d28d2}},
      {"recursive-pair", 101, {0x7bee5dff094ecf23, 0x07b48227abb1672f, 0x9ad380d9f86a28f7}},
      {"recursive-pair; tie=minus", 101, {0x9fa0a9b079ba49f6, 0xaccf901bce536795, 0x4f54c169e3e9a39e}},
      {"recursive-pair; sign=walk,c=30", 101, {0x9189752c421af61a, 0x4015eba71c812ea3, 0xdeff40c1b9696b32}},
      {"mean; centring=none; block=3", 101, {0x22ca6206e2681d5d, 0xdddad957fc1a04c9, 0xa043faab80321b11}},
      {"pair; block=8", 101, {0x81138f2b50c36282, 0x819434c314c78fdf, 0x78c81ce2f562d1b5}},
      {"batch; centring=none; block=5", 101, {0x37df4fd96cb71859, 0xc832842a73ba5c07, 0xc47ace1c78cbf2ba}},
      {"recursive; depth=2", 32, {0xc652f27481a5f587, 0xc05fcb4048f243b7, 0xc05fcb4048f243b7}},
      {"recursive-pair; block=8", 96, {0x748e3dd6888b7b43, 0x718e5885daf717d1, 0xec700c1a76b8d311}},
      {"recursive-pair; depth=3", 101, {0x1b3f6c1734e9afba, 0x08f9dd6995ea5b0e, 0xd4ae5b498c147060}},
      {"pair; unit=4", 101, {0x0b761f94ebd90ac4, 0x6de2fcd549e85b82, 0x4fcfcb2f911beee4}},
      {"rr", 101, {0x5fa490c8b85f7816, 0xf5358de00b882f4a, 0x5591a766b9737c19}},
      {"so", 101, {0x01e563cd6698f56b, 0x01e563cd6698f56b, 0x01e563cd6698f56b}},
      {"fixed", 101, {0xe4f6b31ec1e5cc22, 0xe4f6b31ec1e5cc22, 0xe4f6b31ec1e5cc22}},
      {"flipflop", 101, {0xd1d2dfadc8e568dc, 0xf5358de00b882f4a, 0x343ca70697e0b66d}},
      {"block-reversal; block=10", 101, {0xd1d2dfadc8e568dc, 0x9aa5c55ebfa76f9a, 0xc11744a0e9b36a4d}},
      {"block-reversal; block=10; reshuffle=no", 101, {0xd1d2dfadc8e568dc, 0x01e563cd6698f56b, 0xd1d2dfadc8e568dc}},
      {"block-reversal; block=10; reverse=no", 101, {0x29689d1e308fecd0, 0x9aa5c55ebfa76f9a, 0x781b82e50c2ce554}},
      {"swr", 101, {0x2536d509d579cb6d, 0x0492cca50c500051, 0x046cea1f9139986a}},
      {"score", 101, {0xfe148c4c49c20511, 0xfe148c4c49c20511, 0xfe148c4c49c20511}},
      {"greedy", 32, {0xb7cd25afcb5571b8, 0xb7cd25afcb5571b8, 0xb7cd25afcb5571b8}},
      {"rr; unit=7", 101, {0x0e25c271007e3ba1, 0x0ecd8e6c7133a3fc, 0xb5a8cd885374aefd}},
      {"cd-pair", 101, {0x8f23bad39014a5cd, 0x82b714a0c07aedde, 0xe8175f84b39731db}},
      {"cd-pair; tie=minus", 101, {0xf984ff3e051036a6, 0xa79789cfd49fdcbe, 0xe96106c9c9f18788}},
      {"cd-pair; sign=walk,c=30", 101, {0xe3e919cd72647b5d, 0x6c80235f29e7b0ee, 0x5cc08993074e7ab8}},
      {"cd-pair; sign=halving", 101, {0x1a75bfc8becb918f, 0x23864d569da0b47d, 0x47d0ff7ab6d5b66d}},
      {"cd-pair; unit=4", 101, {0x361f68fa4da0c40b, 0x3af61a26682cdbec, 0xca54e3e702e1e159}},
      {"id-pair", 101, {0x9944375ed11eba07, 0xd05ecba5b69acddc, 0x930f85b0351e372c}},
      {"id-pair; sign=halving", 101, {0x032691d013e392f7, 0x036c3e0c9776be33, 0xf1e41630b45698ee}},
      {"d-rr", 101, {0xe3dc16161440f34a, 0x0f15f1083b4e3d8f, 0xc7e4c776ef7f1db0}},
      // clang-format on
  };
}

/// Seven workers; the hash is of all their orders.
std::vector<std::uint64_t> hashes_of_workers(const GoldenOrder& golden) {
  const std::vector<float> rows = integer_rows(golden.examples, kDim);
  SelfCommunicator self;
  DistributedSampler sampler(Shares::strided(golden.examples, 7), parse_spec(golden.spec), self, {.seed = 7});
  std::vector<std::uint64_t> hashes;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (std::size_t step = 0; step < golden.examples; ++step) {
      const std::size_t worker = step % sampler.workers();
      sampler.next(worker, kBatch);
      const auto units = sampler.oldest_outstanding(worker, 0, sampler.outstanding(worker));
      const auto batch = cases::gather(rows, kDim, std::span<const Index>(units));
      sampler.deposit(worker, Rows<float>{batch.data(), units.size(), kDim});
      if (worker + 1 == sampler.workers()) sampler.step();
    }
    sampler.end_epoch();
    hashes.push_back(sampler.order_hash());
  }
  return hashes;
}

std::vector<std::uint64_t> hashes_of(const GoldenOrder& golden) {
  if (parse_spec(golden.spec).distributed()) return hashes_of_workers(golden);
  const std::size_t n = golden.examples;
  const std::vector<float> rows = integer_rows(n, kDim);
  Sampler sampler(n, parse_spec(golden.spec), {.seed = 7});
  if (sampler.spec().name == OrderName::kScore) {
    std::vector<double> scores(n);
    for (std::size_t i = 0; i < n; ++i) scores[i] = static_cast<double>(rows[i * kDim]);
    sampler.set_scores(scores);
  }
  std::vector<std::uint64_t> hashes;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::size_t done = 0;
    while (!sampler.next(kBatch * sampler.spec().unit).empty()) {
      const std::size_t count = sampler.outstanding();
      const auto batch = cases::gather(rows, kDim, sampler.order().subspan(done, count));
      sampler.observe(Rows<float>{batch.data(), count, kDim});
      done += count;
    }
    sampler.end_epoch();
    hashes.push_back(order_hash(sampler.order()));
  }
  return hashes;
}

TEST(GoldenOrder, EverySpecGivesTheSameOrdersOnEveryInstructionSet) {
  if (!golden_folder().empty()) {
    for (const GoldenOrder& golden : golden_orders()) {
      std::vector<std::string> texts;
      for (const std::uint64_t hash : hashes_of(golden)) texts.push_back(fmt::format("0x{:016x}", hash));
      fmt::print("      {{\"{}\", {}, {{{}}}}},\n", golden.spec, golden.examples, fmt::join(texts, ", "));
    }
    return;
  }
  const auto targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const auto target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    for (const GoldenOrder& golden : golden_orders())
      EXPECT_EQ(hashes_of(golden), golden.hashes) << golden.spec << " on " << hwy::TargetName(target);
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(GoldenOrder, AnOrderFromAFileIsTheOneThatWasSaved) {
  constexpr std::size_t kExamples = 101;
  const test::TempFolder folder;
  const auto order = random_permutation({7, Purpose::kData, 0, 0}, kExamples);
  write_npy_order(folder / "order.npy", order);
  Sampler sampler(kExamples, parse_spec("file; path=" + (folder / "order.npy").string()));
  EXPECT_EQ(order_of(sampler), order);
  sampler.next(kExamples);
  sampler.end_epoch();
  EXPECT_EQ(order_of(sampler), order);
}

}  // namespace
}  // namespace cdgrab
