// SPDX-License-Identifier: Apache-2.0
// Runs that last: memory stays flat, and every order is one.
#include "torture/soak.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cdgrab/cdgrab.hpp"

namespace cdgrab::torture {
namespace {

constexpr std::size_t kNumbers = 8;
constexpr std::size_t kBank = 4096;

/// Enough numbers for any batch from any place below kBank.
std::vector<float> bank_of_rows(std::size_t batch) {
  std::vector<float> bank((kBank + batch) * kNumbers);
  for (std::size_t i = 0; i < bank.size(); ++i)
    bank[i] = static_cast<float>(normal({11, Purpose::kData, 0, 0}, i));
  return bank;
}

/// A batch whose vectors differ from epoch to epoch, so that orders never settle. False when the epoch is
/// through.
bool train_step(Sampler& sampler, const std::vector<float>& bank, std::size_t batch) {
  const std::size_t count = sampler.next(batch).size();
  if (count == 0) return false;
  const std::size_t place = (sampler.epoch() * 977 + sampler.position().handed_out * 31) % kBank;
  sampler.observe(Rows<float>{&bank[place * kNumbers], count, kNumbers});
  return true;
}

TEST(Soak, AMillionObservedStepsTakeNoMemory) {
  const std::vector<float> bank = bank_of_rows(8);
  for (const char* spec : {"pair", "mean", "batch", "recursive", "recursive-pair", "pair; sign=halving",
                           "pair; sketch=gauss:4"}) {
    Sampler sampler(500, parse_spec(spec));
    expect_flat_memory(spec, 20'000, [&] {
      if (train_step(sampler, bank, 8)) return;
      sampler.begin();
      train_step(sampler, bank, 8);
    });
  }
}

TEST(Soak, AMillionRoundsOfManyWorkersTakeNoMemory) {
  const std::vector<float> bank = bank_of_rows(8);
  for (const char* spec : {"cd-pair", "id-pair"}) {
    SelfCommunicator alone;
    DistributedSampler sampler(Shares::strided(500, 3), parse_spec(spec), alone);
    expect_flat_memory(spec, 10'000, [&] {
      bool any = false;
      for (std::size_t worker = 0; worker < 3; ++worker) {
        const std::size_t count = sampler.next(worker, 8).size();
        any = any || count > 0;
        const std::size_t place = (sampler.epoch() * 977 + sampler.steps() * 31 + worker) % kBank;
        sampler.deposit(worker, Rows<float>{&bank[place * kNumbers], count, kNumbers});
      }
      if (any)
        sampler.step();
      else
        sampler.end_epoch();
    });
  }
}

TEST(Soak, StatesOfALongRunDoNotGrow) {
  const std::vector<float> bank = bank_of_rows(8);
  Sampler sampler(100, parse_spec("recursive-pair; depth=2"));
  std::size_t first = 0;
  expect_flat_memory("saved and loaded", 5'000, [&] {
    if (!train_step(sampler, bank, 8)) sampler.begin();
    const std::vector<std::byte> bytes = encode_state(sampler.state());
    if (sampler.epoch() > 0 && first == 0) first = bytes.size();
    if (first > 0) {
      ASSERT_EQ(bytes.size(), first);
    }
    sampler.load(decode_state(bytes, "test"));
  });
}

TEST(Soak, TenThousandEpochsAreTenThousandPermutations) {
  const std::size_t n = 10'007;
  const std::size_t epochs = (at_length() ? 10'000 : 50) / cases::kShare;
  const std::vector<float> bank = bank_of_rows(500);
  for (const char* spec : {"pair", "mean", "recursive-pair", "rr"}) {
    Sampler sampler(n, parse_spec(spec));
    std::vector<Index> before;
    for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
      sampler.begin();
      const std::vector<Index> order(sampler.order().begin(), sampler.order().end());
      ASSERT_EQ(order.size(), n);
      ASSERT_TRUE(is_permutation(order)) << spec << ", epoch " << epoch;
      ASSERT_NE(order, before) << spec << ", epoch " << epoch;
      before = order;
      while (train_step(sampler, bank, 500)) {
      }
      ASSERT_EQ(sampler.report().observed, n);
    }
    std::printf("%s: %zu epochs of %zu examples, all permutations, each other than the one before\n", spec,
                epochs, n);
  }
}

}  // namespace
}  // namespace cdgrab::torture
