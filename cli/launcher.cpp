// SPDX-License-Identifier: Apache-2.0
#include "launcher.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace cdgrab::cli {
namespace {

// Open MPI, MPICH and its kin (hydra, Intel, srun with PMI), MVAPICH, srun with PMIx.
constexpr std::array kRankVariables = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
                                       "PMIX_RANK"};

}  // namespace

bool launched() {
  for (const char* name : kRankVariables)
    if (std::getenv(name) != nullptr) return true;
  return false;
}

std::size_t launched_rank() {
  for (const char* name : kRankVariables) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    const std::string_view text = value;
    std::size_t rank = 0;
    std::from_chars(text.data(), text.data() + text.size(), rank);
    return rank;
  }
  return 0;
}

}  // namespace cdgrab::cli
