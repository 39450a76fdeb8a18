// SPDX-License-Identifier: Apache-2.0
// What must never change by accident: files of every format version still load and go on to the same
// orders, and every spec still gives the same orders for a seed. To write the tables and the files anew
// after a change that is meant to change them:
//   CDGRAB_GOLDEN=/tmp/golden build/release/bin/cdgrab_golden_tests
// prints the tables of this file and writes the state files into that folder.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/npy.hpp"
#include "cdgrab/random.hpp"
#include "cdgrab/sampler.hpp"
#include "cdgrab/self_communicator.hpp"
#include "every_target.hpp"
#include "property/runner.hpp"
#include "spec/tables.hpp"
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

constexpr std::size_t kStateDim = 3;

/// One per kind of sampler and version. Where a mean is taken, of a number of examples that is a power of
/// two: everything is exact.
struct GoldenState {
  std::string file;
  std::string spec;
  std::size_t examples = 0;
  std::vector<Index> next;        ///< the order after the epoch that the file is in the middle of
  std::vector<Index> after_next;  ///< and after the one that follows
};

std::vector<GoldenState> golden_states() {
  return {
      // clang-format off
      {"pair.1.state", "pair", 11, {10, 2, 4, 0, 7, 3, 8, 5, 9, 6, 1}, {10, 4, 7, 8, 6, 1, 9, 5, 3, 0, 2}},
      {"mean.1.state", "mean", 16, {10, 0, 5, 13, 12, 8, 3, 11, 4, 6, 14, 15, 9, 7, 2, 1}, {10, 0, 5, 13, 12, 8, 3, 6, 9, 1, 2, 7, 15, 14, 4, 11}},
      {"moving-average.1.state", "mean; centring=ema; beta=0.5", 16, {10, 12, 9, 5, 4, 14, 6, 13, 0, 11, 3, 8, 1, 15, 7, 2}, {10, 12, 5, 4, 14, 13, 0, 11, 2, 7, 15, 1, 8, 3, 6, 9}},
      {"batch.1.state", "batch; block=4", 16, {10, 3, 8, 1, 7, 0, 5, 14, 6, 4, 9, 13, 11, 2, 12, 15}, {10, 3, 8, 1, 7, 0, 5, 14, 6, 4, 9, 13, 11, 2, 15, 12}},
      {"halving.1.state", "pair; sign=halving", 11, {1, 0, 4, 5, 7, 10, 8, 6, 9, 2, 3}, {1, 4, 10, 8, 9, 3, 2, 6, 7, 5, 0}},
      {"walk.1.state", "pair; sign=walk,c=3", 11, {8, 0, 4, 5, 7, 10, 1, 6, 9, 2, 3}, {8, 4, 7, 1, 2, 3, 9, 6, 10, 5, 0}},
      {"recursive.1.state", "recursive; depth=2", 16, {10, 0, 5, 9, 7, 2, 3, 11, 4, 1, 14, 6, 15, 8, 12, 13}, {10, 0, 5, 9, 7, 2, 3, 6, 15, 8, 12, 13, 11, 4, 1, 14}},
      {"greedy.1.state", "greedy", 16, {12, 11, 0, 1, 14, 10, 9, 5, 13, 8, 3, 6, 4, 15, 2, 7}, {12, 11, 0, 1, 14, 10, 9, 5, 13, 8, 3, 6, 4, 15, 2, 7}},
      {"score.1.state", "score", 11, {8, 1, 6, 3, 0, 2, 10, 5, 7, 4, 9}, {8, 1, 6, 3, 0, 2, 10, 5, 7, 4, 9}},
      {"swr.1.state", "swr", 11, {2, 0, 7, 5, 8, 3, 4, 0, 7, 5, 6}, {7, 2, 8, 2, 6, 4, 1, 2, 5, 7, 8}},
      {"rr.1.state", "rr", 11, {10, 5, 0, 7, 2, 1, 3, 6, 4, 8, 9}, {3, 5, 4, 1, 2, 7, 10, 6, 8, 9, 0}},
      {"block-reversal.1.state", "block-reversal; block=4", 11, {5, 4, 9, 10, 3, 8, 1, 2, 7, 6, 0}, {0, 6, 7, 2, 1, 8, 3, 10, 9, 4, 5}},
      {"recursive-pair.1.state", "recursive-pair; depth=2", 11, {10, 6, 5, 4, 3, 7, 2, 9, 8, 1, 0}, {10, 9, 1, 5, 7, 0, 6, 3, 8, 4, 2}},
      // clang-format on
  };
}

/// In the second epoch, with an odd number of examples observed and one more handed out.
Sampler half_way(const GoldenState& golden) {
  const std::vector<float> rows = integer_rows(golden.examples, kStateDim);
  Sampler sampler(golden.examples, parse_spec(golden.spec), {.seed = 5});
  if (sampler.spec().name == OrderName::kScore)
    sampler.set_scores(
        std::vector<double>(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(golden.examples)));
  cases::step(sampler, rows, kStateDim, golden.examples);
  sampler.end_epoch();
  cases::step(sampler, rows, kStateDim, 7);
  sampler.next(1);
  return sampler;
}

std::vector<Index> finish_epoch(Sampler& sampler) {
  const std::vector<float> rows = integer_rows(sampler.examples(), kStateDim);
  sampler.next(sampler.examples());
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
      Sampler sampler = half_way(golden);
      fs::create_directories(golden_folder());
      save_state(sampler.state(), golden_folder() / golden.file);
      const auto next = finish_epoch(sampler);
      const auto after_next = finish_epoch(sampler);
      fmt::print("      {{\"{}\", \"{}\", {}, {{{}}}, {{{}}}}},\n", golden.file, golden.spec, golden.examples,
                 fmt::join(next, ", "), fmt::join(after_next, ", "));
      continue;
    }
    Sampler sampler(golden.examples, parse_spec(golden.spec));
    sampler.load(load_state(fs::path(CDGRAB_GOLDEN_FOLDER) / golden.file));
    EXPECT_EQ(sampler.epoch(), 1U);
    EXPECT_EQ(sampler.position().handed_out, 8U);
    EXPECT_EQ(sampler.report().observed, 7U);
    const bool pairs = sampler.spec().centring == Centring::kPair && sampler.spec().balances();
    EXPECT_GE(sampler.report().unpaired, pairs ? 1U : 0U);
    EXPECT_EQ(finish_epoch(sampler), golden.next);
    EXPECT_EQ(finish_epoch(sampler), golden.after_next);
  }
}

TEST(GoldenState, TheLibraryStillWritesTheSameBytes) {
  if (!golden_folder().empty()) GTEST_SKIP() << "the files are being written";
  for (const GoldenState& golden : golden_states()) {
    SCOPED_TRACE(golden.file);
    const State stored = load_state(fs::path(CDGRAB_GOLDEN_FOLDER) / golden.file);
    EXPECT_EQ(encode_state(half_way(golden).state()), encode_state(stored));
  }
}

TEST(GoldenState, NothingIsLoadedIntoAnotherSampler) {
  if (!golden_folder().empty()) GTEST_SKIP() << "the files are being written";
  const State stored = load_state(fs::path(CDGRAB_GOLDEN_FOLDER) / golden_states().front().file);
  Sampler other(golden_states().front().examples + 1, parse_spec("pair"));
  const State before = other.state();
  EXPECT_THROW(other.load(stored), StateMismatch);
  EXPECT_EQ(other.state(), before);
}

/// Of three workers on one rank, in the middle of the second epoch: a pair waits for its turn, and units wait
/// for partners.
struct GoldenWorkers {
  std::string file;
  std::string spec;
  bool of_one_rank = false;  ///< local_state(), with a deposit that has not travelled
  std::vector<std::uint64_t> hashes;
};

std::vector<GoldenWorkers> golden_workers() {
  return {
      // clang-format off
      {"cd-pair.1.state", "cd-pair", false, {0xf705991ba432b031, 0xb7f07f4d524362c1}},
      {"cd-pair-rank.1.state", "cd-pair; sign=halving", true, {0xf26162a08faaa86e, 0xcd3ee93c790d0028}},
      {"id-pair.1.state", "id-pair", false, {0xc62a848710f8903c, 0x9eee9805a60ed956}},
      {"d-rr.1.state", "d-rr", false, {0x9c09b9206bea19f3, 0xcc9cb36e0616fcfb}},
      // clang-format on
  };
}

constexpr std::size_t kWorkersExamples = 23;

DistributedSampler three_workers(const std::string& spec, Communicator& alone, std::uint64_t seed) {
  return {Shares::strided(kWorkersExamples, 3), parse_spec(spec), alone, {.seed = seed}};
}

void deposit(DistributedSampler& sampler, std::size_t worker, std::size_t count) {
  const std::vector<float> rows = integer_rows(kWorkersExamples, kStateDim);
  sampler.next(worker, count);
  const auto units = sampler.oldest_outstanding(worker, 0, sampler.outstanding(worker));
  const auto batch = cases::gather(rows, kStateDim, std::span<const Index>(units));
  sampler.deposit(worker, Rows<float>{batch.data(), units.size(), kStateDim});
}

std::uint64_t finish_epoch(DistributedSampler& sampler) {
  for (std::size_t worker = 0; worker < sampler.workers(); ++worker)
    deposit(sampler, worker, kWorkersExamples);
  sampler.step();
  sampler.end_epoch();
  return sampler.order_hash();
}

State state_of(const GoldenWorkers& golden) {
  SelfCommunicator alone;
  DistributedSampler sampler = three_workers(golden.spec, alone, 5);
  finish_epoch(sampler);
  for (std::size_t worker = 0; worker < 3; ++worker) deposit(sampler, worker, 5 - 2 * worker);
  sampler.step();
  if (!golden.of_one_rank) return sampler.save();
  deposit(sampler, 0, 1);
  return sampler.local_state();
}

TEST(GoldenState, ThoseOfManyWorkersGoOnToTheSameOrders) {
  for (const GoldenWorkers& golden : golden_workers()) {
    SCOPED_TRACE(golden.file);
    SelfCommunicator alone;
    DistributedSampler sampler = three_workers(golden.spec, alone, 1);
    if (golden_folder().empty()) {
      const State stored = load_state(fs::path(CDGRAB_GOLDEN_FOLDER) / golden.file);
      EXPECT_EQ(encode_state(state_of(golden)), encode_state(stored));
      sampler.load(stored);
      EXPECT_EQ(sampler.epoch(), 1U);
      for (const std::uint64_t hash : golden.hashes) EXPECT_EQ(finish_epoch(sampler), hash);
      EXPECT_EQ(golden.hashes.size(), 2U);
      continue;
    }
    save_state(state_of(golden), golden_folder() / golden.file);
    sampler.load(state_of(golden));
    const std::uint64_t next = finish_epoch(sampler);
    fmt::print("      {{\"{}\", \"{}\", {}, {{{:#018x}, {:#018x}}}}},\n", golden.file, golden.spec,
               golden.of_one_rank, next, finish_epoch(sampler));
  }
}

// ---- orders

constexpr std::size_t kDim = 37;
constexpr std::size_t kBatch = 16;

constexpr std::uint64_t kOtherSeed = 0xfedcba9876543210;

/// order_hash of the orders of epochs 1, 2 and 3, seed 7, and of epoch 3 with the other seed. Only specs
/// under which everything is exact on integers (docs/math.md, section 7): a mean is one when n is a power of
/// two.
struct GoldenOrder {
  std::string spec;
  std::size_t examples = 0;
  std::vector<std::uint64_t> hashes;
};

std::vector<GoldenOrder> golden_orders() {
  return {
      // clang-format off
      {"mean", 32, {0x3828b058d571e010, 0x0e0d1bf04e8e3020, 0x3fbf084d6e88ee00, 0x3ca70dbc6ba380eb}},
      {"mean; centring=none", 101, {0x4d376edf55a05adf, 0x652a31a438c72941, 0xc4db0f819e8dc5eb, 0xb919aa6cd695e9f5}},
      {"mean; tie=minus", 32, {0x50b9c84c10af8eef, 0x6da9b78245af0faf, 0x8bbdfa4ab9399f36, 0xdd48ce1bb58ab069}},
      {"mean; centring=none; tie=minus", 101, {0x225bb19b86d57ce6, 0xa6834ff407e6db2f, 0x1c3b342a6bbcb02e, 0xce5437a60cad37c3}},
      {"mean; sign=walk,c=30", 32, {0x7b225db77e34a205, 0x84d3a07d07c63e55, 0x160e406038d44125, 0x14f7d5f28ac4e0a5}},
      {"mean; centring=none; sign=walk,c=30", 101, {0x35c60273314b5b42, 0x76cb74c072cad8fb, 0x4123aeb350f6181d, 0x08b6ffc01cf7d635}},
      {"pair", 101, {0x954b87cc64a537ef, 0x6f7cdebfac9ce46c, 0xbb43d4d4cd1095e2, 0x3d7e5bd573033bbb}},
      {"pair; tie=minus", 101, {0x788d829a25877b20, 0x774214d00c8465fe, 0x8614020ed7fec40c, 0x8bb4f25ba86dd592}},
      {"pair; sign=walk,c=30", 101, {0x954b87cc64a537ef, 0x584ac7dff5c84322, 0xb46be22bae6f8495, 0x16b8af2dcdf76444}},
      {"pair; sign=halving", 101, {0x3da78b9c643599a4, 0x7df2fc3e555218f9, 0xcf46011216710a00, 0x3073af28e4cb2156}},
      {"pair; sign=halving,delta=0.1,epochs=10", 101, {0x3da78b9c643599a4, 0x7df2fc3e555218f9, 0xcf46011216710a00, 0x809981d5fe1e026e}},
      {"batch", 32, {0xa65d76e2ba3b48d0, 0x6cd81ff4e45b0ecd, 0xda99ac7c3a43dbc8, 0xc6620352108416fe}},
      {"batch; centring=none", 101, {0x92d31d5d287a1d34, 0x28342ebbc13782a6, 0x87aeb47d079b5276, 0xeff7b19373537adf}},
      {"batch; tie=minus", 32, {0xd25bfb6db6ac5110, 0xba248dd02aa5db1a, 0x826c537841c923bf, 0x7baacca3c9ca7e75}},
      {"batch; centring=none; tie=minus", 101, {0x6bb0ff32fcced907, 0x6a3a0464b03d01bd, 0xdf71b6e5b77ba372, 0x154dd93773b280c2}},
      {"batch; sign=walk,c=30", 32, {0x5c721f7adebd8a98, 0x4e9a7a134cf521e5, 0x1a2ca9cb4571e56d, 0x6db875bfa9471ef2}},
      {"batch; centring=none; sign=walk,c=30", 101, {0x3d8e42ea4a15a6e8, 0x3ff5e254b11211dd, 0xb41e9e12c6e53561, 0x18bd5b91812d08d5}},
      {"recursive", 32, {0x2f70e59c5a30f87e, 0xb7c6b333e0d1f791, 0xb7c6b333e0d1f791, 0x2ed5d158aa7df4fb}},
      {"recursive; centring=none", 101, {0xd061f081880ea312, 0x22a045f12b608c82, 0x662c9da343de9a54, 0x8e764fe9ac70e64d}},
      {"recursive; tie=minus", 32, {0x71b329f2ef820b28, 0xad688340d96b3527, 0x6a93c055dae4fa74, 0x83c81f8c03262bb2}},
      {"recursive; centring=none; tie=minus", 101, {0x446d931a40bccb89, 0xb73fd4cdaf89e944, 0x81a493f9ee0876b6, 0x58d37e2b1a97d13d}},
      {"recursive; sign=walk,c=30", 32, {0x33e81b7b105bde92, 0xdbe2468e83034f2a, 0x74c59b86702f8cff, 0x20781b0dffa153ce}},
      {"recursive; centring=none; sign=walk,c=30", 101, {0x8e08234a22ae010d, 0x6164b3235f795aba, 0xba1c86452e3d28d2, 0x09299441a011c722}},
      {"recursive-pair", 101, {0x7bee5dff094ecf23, 0x07b48227abb1672f, 0x9ad380d9f86a28f7, 0xcf055411b3a65c4b}},
      {"recursive-pair; tie=minus", 101, {0x9fa0a9b079ba49f6, 0xaccf901bce536795, 0x4f54c169e3e9a39e, 0x96d12838173f9a80}},
      {"recursive-pair; sign=walk,c=30", 101, {0x9189752c421af61a, 0x4015eba71c812ea3, 0xdeff40c1b9696b32, 0xe96d9a7dc89096cb}},
      {"mean; centring=none; block=3", 101, {0x22ca6206e2681d5d, 0xdddad957fc1a04c9, 0xa043faab80321b11, 0xf212128c8ace464b}},
      {"pair; block=8", 101, {0x81138f2b50c36282, 0x819434c314c78fdf, 0x78c81ce2f562d1b5, 0x6cb1b8ea35676197}},
      {"batch; centring=none; block=5", 101, {0x37df4fd96cb71859, 0xc832842a73ba5c07, 0xc47ace1c78cbf2ba, 0x60cd479ecbd3f1eb}},
      {"recursive; depth=2", 32, {0xc652f27481a5f587, 0xc05fcb4048f243b7, 0xc05fcb4048f243b7, 0x2ed5d158aa7df4fb}},
      {"recursive-pair; block=8", 96, {0x748e3dd6888b7b43, 0x718e5885daf717d1, 0xec700c1a76b8d311, 0xf76ec6ffdce3d99c}},
      {"recursive-pair; depth=3", 101, {0x1b3f6c1734e9afba, 0x08f9dd6995ea5b0e, 0xd4ae5b498c147060, 0x811678b0f1836dba}},
      {"pair; unit=4", 101, {0x0b761f94ebd90ac4, 0x6de2fcd549e85b82, 0x4fcfcb2f911beee4, 0x69334dfa0f0fa150}},
      {"rr", 101, {0x5fa490c8b85f7816, 0xf5358de00b882f4a, 0x5591a766b9737c19, 0x23d4d1e82f4a0ef8}},
      {"so", 101, {0x01e563cd6698f56b, 0x01e563cd6698f56b, 0x01e563cd6698f56b, 0x06b30ecbc6733ee7}},
      {"fixed", 101, {0xe4f6b31ec1e5cc22, 0xe4f6b31ec1e5cc22, 0xe4f6b31ec1e5cc22, 0xe4f6b31ec1e5cc22}},
      {"flipflop", 101, {0xd1d2dfadc8e568dc, 0xf5358de00b882f4a, 0x343ca70697e0b66d, 0xc574918ff749be65}},
      {"block-reversal; block=10", 101, {0xd1d2dfadc8e568dc, 0x9aa5c55ebfa76f9a, 0xc11744a0e9b36a4d, 0x282aff3c2aafd0d5}},
      {"block-reversal; block=10; reshuffle=no", 101, {0xd1d2dfadc8e568dc, 0x01e563cd6698f56b, 0xd1d2dfadc8e568dc, 0x2d3a4cc1289ce090}},
      {"block-reversal; block=10; reverse=no", 101, {0x29689d1e308fecd0, 0x9aa5c55ebfa76f9a, 0x781b82e50c2ce554, 0x8cf210623b692070}},
      {"swr", 101, {0x2536d509d579cb6d, 0x0492cca50c500051, 0x046cea1f9139986a, 0x78d4ae7842b450fd}},
      {"score", 101, {0xfe148c4c49c20511, 0xfe148c4c49c20511, 0xfe148c4c49c20511, 0x30b2c9c9e62a093e}},
      {"greedy", 32, {0xb7cd25afcb5571b8, 0xb7cd25afcb5571b8, 0xb7cd25afcb5571b8, 0xb7cd25afcb5571b8}},
      {"rr; unit=7", 101, {0x0e25c271007e3ba1, 0x0ecd8e6c7133a3fc, 0xb5a8cd885374aefd, 0x546fa62f68abf406}},
      {"cd-pair", 101, {0x8f23bad39014a5cd, 0x82b714a0c07aedde, 0xe8175f84b39731db, 0xd126cd75febedfcd}},
      {"cd-pair; tie=minus", 101, {0xf984ff3e051036a6, 0xa79789cfd49fdcbe, 0xe96106c9c9f18788, 0x08104647938064c1}},
      {"cd-pair; sign=walk,c=30", 101, {0xe3e919cd72647b5d, 0x6c80235f29e7b0ee, 0x5cc08993074e7ab8, 0xf83bb036564928ac}},
      {"cd-pair; sign=halving", 101, {0x1a75bfc8becb918f, 0x23864d569da0b47d, 0x47d0ff7ab6d5b66d, 0x27fd8b643f3041da}},
      {"cd-pair; unit=4", 101, {0x361f68fa4da0c40b, 0x3af61a26682cdbec, 0xca54e3e702e1e159, 0x02bc83b317921728}},
      {"id-pair", 101, {0x9944375ed11eba07, 0xd05ecba5b69acddc, 0x930f85b0351e372c, 0xa5652c0e667cd0c3}},
      {"id-pair; sign=halving", 101, {0x032691d013e392f7, 0x036c3e0c9776be33, 0xf1e41630b45698ee, 0x651f830edbeb220b}},
      {"recursive; depth=2; sign=walk,c=30", 32, {0x576dd61a1a31b148, 0xed0e791eb97df424, 0x74fad1e9faa5182e, 0xc12ecb68ba11509b}},
      {"recursive-pair; depth=2; sign=walk,c=30", 101, {0xd2300ee968fb2a2d, 0x7dbbe0fc94fc2056, 0x450dbde41382db7c, 0xc4cc177c0ee098aa}},
      {"id-pair; sign=walk,c=30", 101, {0x56af172ccd6c6b43, 0xc85191763dc19197, 0xcb6719a7b5665e38, 0x47b52986d04e6863}},
      {"d-rr", 101, {0xe3dc16161440f34a, 0x0f15f1083b4e3d8f, 0xc7e4c776ef7f1db0, 0xce02190fd70ffa7e}},
      // clang-format on
  };
}

/// Seven workers; the hash is of all their orders.
std::vector<std::uint64_t> hashes_of_workers(const GoldenOrder& golden, std::uint64_t seed) {
  const std::vector<float> rows = integer_rows(golden.examples, kDim);
  SelfCommunicator self;
  DistributedSampler sampler(Shares::strided(golden.examples, 7), parse_spec(golden.spec), self,
                             {.seed = seed});
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

std::vector<std::uint64_t> hashes_of(const GoldenOrder& golden, std::uint64_t seed) {
  if (parse_spec(golden.spec).distributed()) return hashes_of_workers(golden, seed);
  const std::size_t n = golden.examples;
  const std::vector<float> rows = integer_rows(n, kDim);
  Sampler sampler(n, parse_spec(golden.spec), {.seed = seed});
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

std::vector<std::uint64_t> hashes_of_seeds(const GoldenOrder& golden) {
  std::vector<std::uint64_t> hashes = hashes_of(golden, 7);
  hashes.push_back(hashes_of(golden, kOtherSeed).back());
  return hashes;
}

TEST(GoldenOrder, TheTableHasEveryOrderUnderEverySignRuleThatItTakes) {
  std::set<std::pair<OrderName, SignKind>> there;
  for (const GoldenOrder& golden : golden_orders()) {
    const Spec spec = parse_spec(golden.spec);
    there.emplace(spec.name, spec.sign.kind);
  }
  for (const detail::NameRow& name : detail::kNames) {
    if (name.name == OrderName::kFile) continue;  // below
    for (const auto& sign : detail::kSigns) {
      if (sign.value != SignKind::kDeterministic && !name.why_no_signs.empty()) continue;
      if (sign.value == SignKind::kHalving && (detail::kHalving & detail::bit(name.name)) == 0) continue;
      EXPECT_TRUE(there.contains({name.name, sign.value})) << name.word << " with sign=" << sign.word;
    }
  }
}

TEST(GoldenOrder, EverySpecGivesTheSameOrdersOnEveryInstructionSet) {
  if (!golden_folder().empty()) {
    for (const GoldenOrder& golden : golden_orders()) {
      std::vector<std::string> texts;
      for (const std::uint64_t hash : hashes_of_seeds(golden))
        texts.push_back(fmt::format("0x{:016x}", hash));
      fmt::print("      {{\"{}\", {}, {{{}}}}},\n", golden.spec, golden.examples, fmt::join(texts, ", "));
    }
    return;
  }
  on_every_target([] {
    for (const GoldenOrder& golden : golden_orders())
      EXPECT_EQ(hashes_of_seeds(golden), golden.hashes) << golden.spec;
  });
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
