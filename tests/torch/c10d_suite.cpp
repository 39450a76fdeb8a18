// SPDX-License-Identifier: Apache-2.0
// The suite of all communicators for ranks under torchrun: loaded by tests/python/test_distributed.py.
#include <torch/library.h>

#include <chrono>
#include <string>
#include <vector>

#include "cdgrab/torch/c10d_communicator.hpp"
#include "conformance/communicator_suite.hpp"

namespace {

using cdgrab::torch::C10dCommunicator;

/// With names of spare groups, by all_to_all.
void run_suite(std::string group, std::vector<std::string> spare) {
  C10dCommunicator communicator(group, {.all_to_all = !spare.empty(), .spare = spare});
  cdgrab::suite::check_communicator(communicator);
}

/// A sum of `length` values; lengths that differ are a mistake.
void sum_values(std::string group, bool all_to_all, std::int64_t length, std::int64_t timeout) {
  C10dCommunicator communicator(group, {.all_to_all = all_to_all});
  communicator.set_timeout(std::chrono::milliseconds(timeout));
  std::vector<double> values(static_cast<std::size_t>(length));
  communicator.sum(values);
}

}  // namespace

TORCH_LIBRARY(cdgrab_suite, library) {
  library.def("run(str group, str[] spare) -> ()", &run_suite);
  library.def("sum(str group, bool all_to_all, int length, int timeout) -> ()", &sum_values);
}
