// SPDX-License-Identifier: Apache-2.0
// What a hostile state can make its reader allocate, counted at operator new: a small multiple of what it
// has.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/sampler.hpp"
#include "cdgrab/self_communicator.hpp"
#include "cdgrab/state.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace {

std::atomic<std::size_t> held = 0;
std::atomic<std::size_t> most_held = 0;

}  // namespace

void* operator new(std::size_t size) {
  void* place = std::malloc(size);
  if (place == nullptr) throw std::bad_alloc();
  const std::size_t now = held += malloc_usable_size(place);
  for (std::size_t most = most_held; now > most && !most_held.compare_exchange_weak(most, now);) {
  }
  return place;
}
// A sanitizer has one of its own, whose memory delete below would not know.
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* place) noexcept {
  held -= malloc_usable_size(place);
  std::free(place);
}
void operator delete(void* place, std::size_t /*size*/) noexcept { operator delete(place); }

namespace cdgrab {
namespace {

/// The most bytes that were held at once for it.
template <class Call>
std::size_t memory_of(const Call& call) {
  const std::size_t before = held;
  most_held = before;
  call();
  return most_held - before;
}

std::string file_of(const std::string& tensors, const std::string& data = "", const std::string& texts = "") {
  const std::string blank(16, '0');
  std::string header = R"({"__metadata__":{"format":"cdgrab.state","version":"1","checksum":")" + blank +
                       "\"" + texts + "}" + tensors + "}";
  std::string file(8, '\0');
  for (std::size_t k = 0; k < 8; ++k) file[k] = static_cast<char>((header.size() >> (8 * k)) & 0xFF);
  file += header + data;
  file.replace(file.find(blank), 16, fmt::format("{:016x}", XXH3_64bits(file.data(), file.size())));
  return file;
}

std::string repeated(std::size_t count, const std::string& with_number) {
  std::string out;
  for (std::size_t k = 0; k < count; ++k) out += fmt::format(fmt::runtime(with_number), k);
  return out;
}

struct Claim {
  std::string name;
  std::string file;
};

std::vector<Claim> claims() {
  constexpr std::size_t kMany = 20000;
  const std::string list = repeated(30, "1,") + "18446744073709551615";
  return {
      {"a header of a terabyte", std::string("\0\0\0\0\0\1\0\0{}", 10)},
      {"a shape of terabytes",
       file_of(R"(,"a":{"dtype":"F64","shape":[1099511627776,1024],"data_offsets":[0,0]})")},
      {"sizes whose product is small again",
       file_of(R"(,"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})")},
      {"offsets beyond the file", file_of(R"(,"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})", "1234")},
      {"many empty tensors",
       file_of(repeated(kMany, R"(,"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"))},
      {"many tensors of many sizes", file_of(repeated(kMany, R"(,"{}":{{"dtype":"U8","shape":[0,)" + list +
                                                                 R"(],"data_offsets":[0,0]}})"))},
      {"many texts", file_of("", "", repeated(kMany, R"(,"text:{}":"")"))},
      {"a long key", file_of(R"(,")" + std::string(1'000'000, 'k') +
                             R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})")},
      {"lists in lists", file_of(R"(,"a":{"dtype":"U8","shape":)" + std::string(100000, '['))},
  };
}

TEST(HostileState, ReadingTakesASmallMultipleOfTheFile) {
  constexpr std::size_t kTimes = 16;
  constexpr std::size_t kAnyway = 64 << 10;
  for (const auto& [name, file] : claims()) {
    const std::size_t taken = memory_of([&] {
      try {
        static_cast<void>(decode_state(std::as_bytes(std::span(file)), "test"));
      } catch (const FileError&) {
      }
    });
    EXPECT_LE(taken, kTimes * file.size() + kAnyway) << name << ", of " << file.size() << " bytes";
    ::testing::Test::RecordProperty(
        name, fmt::format("{:.1f}", static_cast<double>(taken) / static_cast<double>(file.size())));
  }
}

constexpr std::size_t kExamples = 40;
constexpr std::size_t kDim = 5;

template <class Observe>
void see(std::size_t count, const Observe& observe) {
  std::vector<float> rows(count * kDim);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 7) - 3.0F;
  observe(Rows<float>{rows.data(), count, kDim});
}

/// Every integer of the state in turn is made huge: loaded or refused, the sampler takes about what it took
/// to load the state as it was.
template <class Load>
void expect_little(const State& state, const Load& load) {
  const std::size_t usual = memory_of([&] { load(state); });
  for (const auto& [key, value] : state.entries()) {
    if (!std::holds_alternative<std::int64_t>(value)) continue;
    for (const std::int64_t huge : {std::int64_t{1} << 32, std::int64_t{1} << 40, std::int64_t{1} << 62}) {
      State hostile = state;
      hostile.set(key, huge);
      const std::size_t taken = memory_of([&] {
        try {
          load(hostile);
        } catch (const StateMismatch&) {
        }
      });
      EXPECT_LE(taken, 2 * usual + (64 << 10)) << key << " = " << huge;
    }
  }
}

TEST(HostileState, NoNumberInItMakesASamplerTakeMore) {
  for (const char* text : {"pair", "mean", "batch; block=4", "recursive-pair; depth=2", "pair; sign=halving",
                           "greedy", "score", "block-reversal; block=4"}) {
    SCOPED_TRACE(text);
    const Spec spec = parse_spec(text);
    Sampler sampler(kExamples, spec);
    sampler.next(9);
    see(9, [&](const Rows<float>& rows) { sampler.observe(rows); });
    expect_little(sampler.state(), [&](const State& state) { Sampler(kExamples, spec).load(state); });
  }
}

TEST(HostileState, NoNumberInItMakesASamplerOfManyWorkersTakeMore) {
  for (const char* text : {"cd-pair", "cd-pair; sketch=sparse:3", "id-pair", "d-rr"}) {
    for (const bool local : {false, true}) {
      SCOPED_TRACE(std::string(text) + (local ? ", of one rank" : ""));
      SelfCommunicator alone;
      const Spec spec = parse_spec(text);
      DistributedSampler sampler(Shares::strided(kExamples, 3), spec, alone);
      for (std::size_t worker = 0; worker < 3; ++worker) {
        sampler.next(worker, 3 + worker);
        see(3 + worker, [&](const Rows<float>& rows) { sampler.deposit(worker, rows); });
      }
      if (!local) sampler.step();
      expect_little(local ? sampler.local_state() : sampler.save(), [&](const State& state) {
        DistributedSampler(Shares::strided(kExamples, 3), spec, alone).load(state);
      });
    }
  }
}

}  // namespace
}  // namespace cdgrab
