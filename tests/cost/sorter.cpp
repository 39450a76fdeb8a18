// SPDX-License-Identifier: Apache-2.0
// An epoch of the sorter, counted: four batches of rows, and the next order.
#include <string>
#include <vector>

#include "cdgrab/cdgrab.hpp"
#include "counted.hpp"

namespace {

constexpr std::size_t kDim = 7850;
constexpr std::size_t kBatch = 16;
constexpr std::size_t kBatches = 4;

void epoch(cdgrab::Sampler& sampler, const std::vector<float>& rows) {
  for (std::size_t k = 0; k < kBatches; ++k) {
    sampler.next(kBatch);
    sampler.observe(cdgrab::Rows<float>{&rows[k * kBatch * kDim], kBatch, kDim});
  }
  sampler.end_epoch();
}

}  // namespace

int main() {
  cost::print_compiler();
  std::vector<float> rows(kBatches * kBatch * kDim);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i * 7919 % 65) - 32.0F;
  for (const char* spec : {"pair", "mean", "recursive"}) {
    cdgrab::Sampler sampler(kBatches * kBatch, cdgrab::parse_spec(spec));
    cost::counted(spec, [&] { epoch(sampler, rows); });
  }
}
