// SPDX-License-Identifier: Apache-2.0
#include <cdgrab/sampler.hpp>
#include <cdgrab/version.hpp>
#include <cstdio>
#include <vector>

int main() {
  constexpr std::size_t kExamples = 100;
  cdgrab::Sampler sampler(kExamples, cdgrab::parse_spec("pair"), {.seed = 3});
  const auto handed = sampler.next(kExamples);
  std::vector<double> rows;
  for (const auto i : handed) rows.insert(rows.end(), {static_cast<double>(i), i % 7 - 3.0});
  sampler.observe(cdgrab::Rows<double>{rows.data(), kExamples, 2});
  sampler.end_epoch();
  std::printf("cdgrab %s, order %016llx\n", cdgrab::version(),
              static_cast<unsigned long long>(cdgrab::order_hash(sampler.order())));
  return cdgrab::is_permutation(sampler.order()) && sampler.epoch() == 1 ? 0 : 1;
}
