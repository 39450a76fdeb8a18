// SPDX-License-Identifier: Apache-2.0
#include "generate.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>

#include "cdgrab/error.hpp"
#include "cdgrab/random.hpp"
#include "interrupt.hpp"

namespace cdgrab::cli {
namespace {

/// Before the machine starts to swap for what was likely a slip of the keyboard.
void require_memory(std::size_t examples, std::size_t dim) {
  const double needed = sizeof(float) * static_cast<double>(examples) * static_cast<double>(dim);
  const double there =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (needed > there) {
    throw UserError("--examples",
                    fmt::format("{} vectors of {} numbers take {:.0f} GB and this machine has {:.0f}; use "
                                "fewer, or a smaller --dim",
                                examples, dim, needed / 1e9, there / 1e9));
  }
}

}  // namespace

Matrix<float> generate_vectors(std::size_t examples, std::size_t dim, std::uint64_t seed,
                               Progress& progress) {
  require_memory(examples, dim);
  const Stream stream{seed, Purpose::kData, 0, 0};
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  Matrix<float> rows{examples, dim, {}};
  rows.values.resize(examples * dim);
  for (std::size_t i = 0; i < rows.values.size(); ++i) {
    if (i % 65536 == 0) {
      check_interrupt();
      progress.show(fmt::format("generating vectors {:.0f}%",
                                100.0 * static_cast<double>(i) / static_cast<double>(rows.values.size())));
    }
    rows.values[i] = static_cast<float>(scale * normal(stream, i));
  }
  progress.clear();
  return rows;
}

}  // namespace cdgrab::cli
