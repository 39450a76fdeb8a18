// SPDX-License-Identifier: Apache-2.0
#include "data/libsvm.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "fuzz/any_file.hpp"

using namespace cdgrab;

namespace {

void require_contract(const data::SparseExamples& examples) {
  fuzz::require(!examples.label.empty() && examples.dim > 0);
  fuzz::require(examples.begin.size() == examples.label.size() + 1);
  fuzz::require(examples.begin.front() == 0 && examples.begin.back() == examples.column.size());
  fuzz::require(examples.value.size() == examples.column.size());
  fuzz::require(std::ranges::all_of(examples.value, [](float value) { return std::isfinite(value); }));
  for (std::size_t i = 0; i < examples.label.size(); ++i) {
    const auto entries =
        std::span(examples.column).subspan(examples.begin[i], examples.begin[i + 1] - examples.begin[i]);
    fuzz::require(std::ranges::adjacent_find(entries, std::greater_equal()) == entries.end());
    fuzz::require(entries.empty() || entries.back() < examples.dim);
    fuzz::require(static_cast<std::size_t>(examples.label[i]) < examples.label_names.size());
  }
}

data::SparseExamples small() {
  data::SparseExamples like;
  like.dim = 3;
  like.label_names = {-1, 1};
  return like;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::AnyFile file({data, size});
  fuzz::value_or_file_error([&] { require_contract(data::read_libsvm(file.path())); });
  fuzz::value_or_file_error([&] { require_contract(data::read_libsvm(file.path(), small())); });
  return 0;
}
