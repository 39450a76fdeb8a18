// SPDX-License-Identifier: Apache-2.0
#include <cdgrab/cdgrab.hpp>
#include <cstdio>
#include <vector>

int main() {
  const std::size_t n = 10000, dim = 16, batch = 64;
  std::vector<float> vectors(n * dim);  // in training: the gradient of each example
  for (std::size_t i = 0; i < vectors.size(); ++i)
    vectors[i] = static_cast<float>(cdgrab::normal({.purpose = cdgrab::Purpose::kData}, i));

  cdgrab::Sampler sampler(n, cdgrab::parse_spec("pair"), {.record_herding = true});
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto handed = sampler.next(batch); !handed.empty(); handed = sampler.next(batch)) {
      std::vector<float> rows;
      for (const auto i : handed) rows.insert(rows.end(), &vectors[i * dim], &vectors[i * dim] + dim);
      sampler.observe(cdgrab::Rows<float>{rows.data(), handed.size(), dim});
    }
    sampler.end_epoch();  // makes the next epoch's order from what was observed
    const auto [used, next] = *sampler.herding();
    std::printf("epoch %d: herding bound %5.1f, of the next order %5.1f\n", epoch, used.linf, next.linf);
  }
}
