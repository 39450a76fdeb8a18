// SPDX-License-Identifier: Apache-2.0
// What balancing costs beside reading the vectors once. One thread, everything interleaved in one run.
//   build/release/bin/bench_sorter [--json] [SPEC ..]
// --json: the multiples alone, as a list.
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cdgrab/cdgrab.hpp"
#include "timing.hpp"

namespace {

using cdgrab::Index;

/// A sum with as many chains as hide the latency: nothing reads a block faster.
double read_once(const std::vector<float>& block) {
  constexpr std::size_t kChains = 64;
  float chains[kChains] = {};
  const std::size_t whole = block.size() - block.size() % kChains;
  for (std::size_t i = 0; i < whole; i += kChains)
    for (std::size_t c = 0; c < kChains; ++c) chains[c] += block[i + c];
  double sum = 0.0;
  for (const float chain : chains) sum += static_cast<double>(chain);
  return sum;
}

std::vector<float> random_block(std::size_t count) {
  std::vector<float> block(count);
  for (std::size_t i = 0; i < count; ++i)
    block[i] = static_cast<float>(cdgrab::uniform({0, cdgrab::Purpose::kData, 0, 0}, i)) - 0.5F;
  return block;
}

/// A sampler in an endless epoch of batches, as in training.
class Sorter {
 public:
  Sorter(const std::string& spec, const std::vector<float>& block, std::size_t batch)
      : sampler_(batch * 64, cdgrab::parse_spec(spec)), block_(block), batch_(batch) {
    sampler_.begin();
  }
  void step() {
    if (sampler_.next(batch_).empty()) {
      sampler_.begin();
      sampler_.next(batch_);
    }
    sampler_.observe(cdgrab::Rows<float>{block_.data(), batch_, block_.size() / batch_});
  }

 private:
  cdgrab::Sampler sampler_;
  const std::vector<float>& block_;
  std::size_t batch_;
};

struct Row {
  std::size_t dim;
  std::size_t batch;
  double read;                    // seconds
  std::vector<double> multiples;  // of it, by spec
};

Row measure(std::size_t dim, std::size_t batch, const std::vector<std::string>& specs) {
  const std::vector<float> block = random_block(batch * dim);
  volatile double sink = 0.0;
  std::vector<bench::Contender> contenders;
  contenders.push_back({"read", [&] { sink = read_once(block); }, {}});
  std::vector<std::unique_ptr<Sorter>> sorters;
  for (const auto& spec : specs) {
    sorters.push_back(std::make_unique<Sorter>(spec, block, batch));
    contenders.push_back({spec, [sorter = sorters.back().get()] { sorter->step(); }, {}});
  }
  bench::interleave(contenders, dim > 500000 ? 9 : (dim > 50000 ? 21 : 101));
  Row row{dim, batch, contenders[0].median(), {}};
  for (std::size_t c = 1; c < contenders.size(); ++c)
    row.multiples.push_back(contenders[c].median() / row.read);
  return row;
}

void for_each_row(const std::vector<std::string>& specs, const std::function<void(const Row&)>& print) {
  for (const std::size_t dim : {7850UL, 62006UL, 1000000UL})
    for (const std::size_t batch : {16UL, 64UL, 256UL}) print(measure(dim, batch, specs));
}

void sorter_table(const std::vector<std::string>& specs) {
  fmt::print("One observed batch, in multiples of reading it once (median of interleaved runs)\n\n");
  fmt::print("{:>9} {:>4} {:>10}", "d", "B", "read, ms");
  for (const auto& spec : specs)
    fmt::print("  {:>12.12}", spec.size() > 12 ? spec.substr(spec.size() - 12) : spec);
  fmt::print("\n");
  for_each_row(specs, [](const Row& row) {
    fmt::print("{:>9} {:>4} {:>10.3f}", row.dim, row.batch, 1e3 * row.read);
    for (const double multiple : row.multiples) fmt::print("  {:>12.2f}", multiple);
    fmt::print("\n");
  });
}

/// A list of rows; specs are words of a known alphabet and need no quoting.
void sorter_json(const std::vector<std::string>& specs) {
  const char* before = "[";
  for_each_row(specs, [&](const Row& row) {
    fmt::print("{}{{\"d\": {}, \"B\": {}, \"read, ms\": {:.6g}, \"multiples\": {{", before, row.dim,
               row.batch, 1e3 * row.read);
    for (std::size_t c = 0; c < specs.size(); ++c)
      fmt::print("{}\"{}\": {:.4g}", c == 0 ? "" : ", ", specs[c], row.multiples[c]);
    fmt::print("}}}}");
    before = ",\n ";
  });
  fmt::print("]\n");
}

/// Peak resident bytes of this process so far.
double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

void order_table() {
  fmt::print("\nThe next order from the codes of one epoch\n\n{:>12} {:>10} {:>12} {:>28}\n", "examples",
             "levels", "seconds", "bytes/example beyond the order");
  constexpr std::size_t kExamples = 100'000'000;
  for (const unsigned levels : {1U, 6U}) {
    std::vector<Index> order = cdgrab::identity_order(kExamples);
    const double before = peak_bytes();
    std::vector<cdgrab::Code> codes(kExamples);
    for (std::size_t i = 0; i < kExamples; ++i)
      codes[i] = cdgrab::leaf_code(static_cast<std::uint32_t>((i * 2654435761ULL >> 16) % (1U << levels)));
    std::vector<Index> next;
    const double seconds = bench::seconds_of([&] { next = cdgrab::fold(order, codes, levels); });
    // The peak never falls, so only the first row measures it.
    const std::string bytes =
        levels == 1 ? fmt::format("{:.2f}", (peak_bytes() - before) / static_cast<double>(kExamples)) : "";
    fmt::print("{:>12} {:>10} {:>12.2f} {:>28}\n", kExamples, levels, seconds, bytes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> specs(argv + 1, argv + argc);
  const bool json = !specs.empty() && specs.front() == "--json";
  if (json) specs.erase(specs.begin());
  if (specs.empty())
    specs = {"pair",
             "mean",
             "batch",
             "recursive",
             "recursive-pair",
             "mean; centring=ema",
             "pair; sign=halving",
             "pair; normalize"};
  if (json) {
    sorter_json(specs);
  } else {
    order_table();
    sorter_table(specs);
  }
}
