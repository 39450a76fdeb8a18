// SPDX-License-Identifier: Apache-2.0
// What the coordinated order of m workers costs beside what data-parallel training sends anyway, and beside
// the published way, an all-gather of all gradients. Ranks are threads; bytes are counted by the communicator
// and do not depend on that.
//   build/release/bin/bench_distributed [most ranks]
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "cdgrab/cdgrab.hpp"
#include "timing.hpp"

// ---- memory: every allocation of this program is counted

namespace {

std::atomic<std::size_t> live_bytes = 0;
std::atomic<std::size_t> peak_bytes = 0;

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t live = live_bytes += malloc_usable_size(memory);
  std::size_t peak = peak_bytes;
  while (peak < live && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

void release(void* memory) {
  live_bytes -= malloc_usable_size(memory);
  std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc)
}

}  // namespace

// NOLINTBEGIN(cppcoreguidelines-no-malloc)
void* operator new(std::size_t size) { return counted(std::malloc(size)); }
void* operator new(std::size_t size, std::align_val_t align) {
  return counted(std::aligned_alloc(static_cast<std::size_t>(align), size));
}
// NOLINTEND(cppcoreguidelines-no-malloc)
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t /*align*/) noexcept { release(memory); }
void operator delete(void* memory, std::size_t /*size*/, std::align_val_t /*align*/) noexcept {
  release(memory);
}

namespace {

using cdgrab::Communicator;
using cdgrab::DistributedSampler;
using cdgrab::Verb;

constexpr std::size_t kBatch = 16;  // examples per worker and step
constexpr const char* kSketched = "cd-pair; sketch=sparse:256";

std::vector<float> random_block(std::size_t count, std::uint64_t seed) {
  std::vector<float> block(count);
  std::uint64_t bits = seed * 2 + 1;
  for (float& value : block) {
    bits = bits * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<float>(static_cast<std::int64_t>(bits) >> 40) * 0x1p-24F;
  }
  return block;
}

/// What a rank sends in one step, by verb, and what it receives.
struct Sent {
  double heads = 0.0;    // all_gather
  double vectors = 0.0;  // all_to_all
  double sums = 0.0;
  double received = 0.0;
  [[nodiscard]] double all() const { return heads + vectors + sums; }
};

Sent operator-(const Sent& a, const Sent& b) {
  return {a.heads - b.heads, a.vectors - b.vectors, a.sums - b.sums, a.received - b.received};
}

Sent sent_by(const Communicator& communicator) {
  const auto bytes = [&](Verb verb) { return static_cast<double>(communicator.traffic(verb).sent); };
  double received = 0.0;
  for (const Verb verb : {Verb::kSum, Verb::kAllGather, Verb::kAllToAll})
    received += static_cast<double>(communicator.traffic(verb).received);
  return {bytes(Verb::kAllGather), bytes(Verb::kAllToAll), bytes(Verb::kSum), received};
}

/// One worker of m, which deposits a batch of vectors at every step, or gives one to be averaged.
class Worker {
 public:
  Worker(Communicator& communicator, const std::string& spec, std::size_t steps, std::size_t per_step)
      : communicator_(communicator),
        per_step_(per_step),
        sampler_(cdgrab::Shares::strided(communicator.ranks() * steps * per_step, communicator.ranks()),
                 cdgrab::parse_spec(spec), communicator) {
    sampler_.begin();
  }

  void deposit(const float* rows, std::size_t dim) {
    if (sampler_.next(own(), per_step_).empty()) {
      sampler_.begin();
      sampler_.next(own(), per_step_);
    }
    sampler_.deposit(own(), cdgrab::Rows<float>{rows, per_step_, dim});
    sampler_.step();
  }
  void average(std::span<const float> gradient, std::span<float> mean) {
    sampler_.next(own(), 1);
    const double weight = kBatch;
    sampler_.average<float>(std::span(&gradient, 1), std::span(&weight, 1), mean);
  }

 private:
  [[nodiscard]] std::size_t own() const { return communicator_.rank(); }

  Communicator& communicator_;
  std::size_t per_step_;
  DistributedSampler sampler_;
};

/// The published way: every rank gets all rows, and balances them all against an accumulator of its own, pair
/// index outer and worker inner, with the kernels that `pair` uses.
class AllGather {
 public:
  AllGather(Communicator& communicator, std::size_t dim)
      : communicator_(communicator), rows_(communicator.ranks() * kBatch * dim), geometry_(dim) {
    geometry_.declare({"accumulator"});
  }

  void step(const float* rows, std::size_t dim) {
    gather(std::as_bytes(std::span(rows, kBatch * dim)));
    geometry_.set_block(rows_.data(), communicator_.ranks() * kBatch);
    std::vector<cdgrab::Vector> group;
    for (std::size_t pair = 0; pair < kBatch / 2; ++pair) {
      for (std::size_t worker = 0; worker < communicator_.ranks(); ++worker) {
        const std::size_t first = worker * kBatch + 2 * pair;
        group.push_back({cdgrab::Operand::row(first), cdgrab::Operand::row(first + 1), true});
        if (group.size() == geometry_.group_size(true, true)) decide(group);
      }
    }
    if (!group.empty()) decide(group);
    geometry_.end_block();
  }

 private:
  void gather(Communicator::Sent mine) {
    std::vector<Communicator::Received> pieces;
    for (std::size_t r = 0; r < communicator_.ranks(); ++r)
      pieces.push_back(std::as_writable_bytes(std::span(rows_)).subspan(r * mine.size(), mine.size()));
    communicator_.all_gather(mine, pieces);
  }

  void decide(std::vector<cdgrab::Vector>& group) {
    geometry_.form(group);
    const std::vector<cdgrab::Register> against(group.size(), 0);
    geometry_.products(against, {group.size() > 1, false}, products_);
    std::vector<cdgrab::Weighted> signs;
    for (std::size_t k = 0; k < group.size(); ++k) {
      double product = products_.inner[k];
      for (std::size_t j = 0; j < k; ++j) product += signs[j].weight * products_.gram[k * (k - 1) / 2 + j];
      signs.push_back({k, product <= 0.0 ? 1.0 : -1.0});
    }
    geometry_.combine(0, signs);
    group.clear();
  }

  Communicator& communicator_;
  std::vector<float> rows_;
  cdgrab::DenseGeometry<float> geometry_;
  cdgrab::Products products_;
};

// ---- bytes

/// The most that a rank sends, and that one receives, in one of `steps` steps; what only the first one sends
/// is left out.
Sent count(std::size_t ranks, std::size_t steps,
           const std::function<std::function<void()>(Communicator&, std::size_t all_steps)>& make) {
  std::vector<Sent> sent(ranks);
  cdgrab::run_on_threads(ranks, [&](Communicator& communicator) {
    const std::function<void()> step = make(communicator, 3 * steps);
    for (std::size_t k = 0; k < steps; ++k) step();
    const Sent before = sent_by(communicator);
    for (std::size_t k = 0; k < steps; ++k) step();
    sent[communicator.rank()] = sent_by(communicator) - before;
  });
  const auto most = std::max_element(sent.begin(), sent.end(),
                                     [](const Sent& a, const Sent& b) { return a.all() < b.all(); });
  const double each = static_cast<double>(steps);
  double received = 0.0;
  for (const Sent& of_rank : sent) received = std::max(received, of_rank.received);
  return {most->heads / each, most->vectors / each, most->sums / each, received / each};
}

Sent count_deposits(const std::string& spec, std::size_t ranks, const std::vector<float>& block) {
  const std::size_t dim = block.size() / kBatch;
  return count(ranks, 1, [&](Communicator& communicator, std::size_t steps) {
    const auto worker = std::make_shared<Worker>(communicator, spec, steps, kBatch);
    return [&block, dim, worker] { worker->deposit(block.data(), dim); };
  });
}

/// Two steps, since a pair takes two.
Sent count_averages(std::size_t ranks, const std::vector<float>& block) {
  const std::size_t dim = block.size() / kBatch;
  return count(ranks, 2, [&](Communicator& communicator, std::size_t steps) {
    const auto worker = std::make_shared<Worker>(communicator, "cd-pair", steps, 1);
    const auto mean = std::make_shared<std::vector<float>>(dim);
    return [&block, dim, worker, mean] { worker->average(std::span(block).first(dim), *mean); };
  });
}

std::string bytes_text(double bytes) {
  return bytes < 1e6 ? fmt::format("{:.1f} kB", bytes / 1e3) : fmt::format("{:.2f} MB", bytes / 1e6);
}

std::string parts_text(const Sent& sent) {
  return fmt::format("vectors {}, sums {}, heads {}", bytes_text(sent.vectors), bytes_text(sent.sums),
                     bytes_text(sent.heads));
}

std::string verdict(double value, double goal) { return value <= goal ? "met" : "MISSED"; }

/// Where sums would be as much as vectors. In pieces a sum of n numbers sends 16 n bytes, and p = m * B / 2
/// pairs have p * p / 2 products: with all pairs of a step in one sum, sums grow with m squared. With a fixed
/// number of pairs to a sum, which is what we do, they grow with m.
void takeover(std::size_t dim, const Sent& sent, std::size_t ranks) {
  const double vectors = kBatch / 2.0 * static_cast<double>(dim) * sizeof(float);
  const double squared = 16.0 * (kBatch / 2.0) * (kBatch / 2.0) / 2.0;
  fmt::print(
      "\nd = {}: sums would take over from vectors at m = {:.0f} with one sum per step, m squared numbers; "
      "as it "
      "is, at m = {:.0f}\n",
      dim, std::sqrt(vectors / squared), static_cast<double>(ranks) * sent.vectors / sent.sums);
}

void traffic_table(std::size_t most_ranks) {
  fmt::print("Bytes that a rank sends per step, B = {} per worker (the most of any rank)\n", kBatch);
  for (const std::size_t dim : {62006UL, 1000000UL}) {
    const std::vector<float> block = random_block(kBatch * dim, 7);
    for (const std::size_t ranks : {4UL, 8UL, 16UL, 64UL}) {
      if (ranks > most_ranks) continue;
      const double m = static_cast<double>(ranks);
      const double numbers = static_cast<double>(dim);
      const double ddp = 2.0 * (m - 1.0) / m * numbers * sizeof(float);
      const double gathered = (m - 1.0) * kBatch * numbers * sizeof(float);
      const Sent each = count_deposits("cd-pair", ranks, block);
      const Sent average = count_averages(ranks, block);
      const Sent sketched = count_deposits(kSketched, ranks, block);
      const double added = average.all() - ddp;
      const double goal = dim > 500000 ? 0.6 : 1.1;
      fmt::print("\nd = {}, m = {}\n", dim, ranks);
      const auto line = [](const std::string& what, double bytes, double of_ddp, const std::string& more) {
        fmt::print("  {:<34} {:>12}  {:>9.3f} x DDP  {}\n", what, bytes_text(bytes), of_ddp, more);
      };
      line("DDP's own averaging (ring)", ddp, 1.0, "");
      line("coordination adds: per example", each.all(), each.all() / ddp,
           fmt::format("{:.3f}/m of the all-gather (goal {}/m: {}); {}", m * each.all() / gathered, goal,
                       verdict(m * each.all() / gathered, goal), parts_text(each)));
      line("  microbatch, by average()", added, added / ddp,
           fmt::format("{}; sums {}, heads and the rest {}",
                       dim > 500000 ? fmt::format("goal 0.01: {}", verdict(added / ddp, 0.01)) : "no goal",
                       bytes_text(average.sums), bytes_text(added - average.sums)));
      line("  sketched, " + std::string(kSketched).substr(9), sketched.all(), sketched.all() / ddp,
           fmt::format("goal 0.05: {}; {}", verdict(sketched.all() / ddp, 0.05),
                       parts_text(sketched) + ", rank 0 receives " + bytes_text(sketched.received)));
      line("the published all-gather", gathered, gathered / ddp, "");
      if (ranks == 64) takeover(dim, each, ranks);
    }
  }
}

// ---- time and memory

/// Bytes per rank that `make` and a step or two take at most.
double memory_per_rank(std::size_t ranks, const std::function<std::function<void()>(Communicator&)>& make) {
  const std::size_t before = live_bytes;
  peak_bytes = before;
  cdgrab::run_on_threads(ranks, [&](Communicator& communicator) {
    const std::function<void()> step = make(communicator);
    for (int k = 0; k < 3; ++k) step();
  });
  return static_cast<double>(peak_bytes - before) / static_cast<double>(ranks);
}

/// One way to coordinate: seconds from the moment when all begin until all have finished, and of processor
/// time of one rank, round by round.
struct Timed {
  std::vector<double> elapsed;
  std::vector<double> processor;

  /// Collective; rank 0 writes it down.
  void run(Communicator& communicator, bool counts, const std::function<void()>& step) {
    communicator.sum({});
    const double before = bench::processor_seconds(CLOCK_THREAD_CPUTIME_ID);
    const double seconds = bench::seconds_of([&] {
      step();
      communicator.sum({});
    });
    if (!counts || communicator.rank() != 0) return;
    elapsed.push_back(seconds);
    processor.push_back(bench::processor_seconds(CLOCK_THREAD_CPUTIME_ID) - before);
  }
};

double median(const std::vector<double>& seconds) { return bench::Contender{"", {}, seconds}.median(); }

void time_table() {
  constexpr std::size_t kRanks = 4;
  fmt::print(
      "Time per step and memory per rank at m = {}: threads on {} cores, both ways interleaved, medians\n\n",
      kRanks, std::thread::hardware_concurrency());
  for (const std::size_t dim : {62006UL, 1000000UL}) {
    const std::size_t rounds = dim > 500000 ? 15 : 101;
    std::vector<std::vector<float>> blocks;
    for (std::size_t r = 0; r < kRanks; ++r) blocks.push_back(random_block(kBatch * dim, r));
    Timed theirs;
    Timed ours;
    cdgrab::run_on_threads(kRanks, [&](Communicator& communicator) {
      const float* rows = blocks[communicator.rank()].data();
      AllGather all(communicator, dim);
      Worker worker(communicator, "cd-pair", rounds + 1, kBatch);
      for (std::size_t round = 0; round <= rounds; ++round) {
        theirs.run(communicator, round > 0, [&] { all.step(rows, dim); });
        ours.run(communicator, round > 0, [&] { worker.deposit(rows, dim); });
      }
    });
    const double their_bytes = memory_per_rank(kRanks, [&](Communicator& communicator) {
      const auto all = std::make_shared<AllGather>(communicator, dim);
      return [&, all] { all->step(blocks[communicator.rank()].data(), dim); };
    });
    const double our_bytes = memory_per_rank(kRanks, [&](Communicator& communicator) {
      const auto worker = std::make_shared<Worker>(communicator, "cd-pair", 64, kBatch);
      return [&, worker] { worker->deposit(blocks[communicator.rank()].data(), dim); };
    });
    const double shorter = median(theirs.elapsed) / median(ours.elapsed);
    const double less = our_bytes / their_bytes;
    fmt::print("d = {}\n  {:<16} {:>10} {:>22} {:>14}\n", dim, "", "ms", "processor ms of a rank", "memory");
    fmt::print("  {:<16} {:>10.2f} {:>22.2f} {:>14}\n", "all-gather", 1e3 * median(theirs.elapsed),
               1e3 * median(theirs.processor), bytes_text(their_bytes));
    fmt::print("  {:<16} {:>10.2f} {:>22.2f} {:>14}\n", "coordinated", 1e3 * median(ours.elapsed),
               1e3 * median(ours.processor), bytes_text(our_bytes));
    fmt::print(
        "  {:.2f}x shorter (goal 2.5x: {}), {:.2f}x less processor time, {:.3f} of the memory (goal 1/m: "
        "{})\n\n",
        shorter, verdict(2.5, shorter), median(theirs.processor) / median(ours.processor), less,
        verdict(less, 1.0 / kRanks));
  }
}

}  // namespace

int main(int argc, char** argv) {
  time_table();
  traffic_table(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 64);
}
