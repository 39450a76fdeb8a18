// SPDX-License-Identifier: Apache-2.0
// A text is a spec, whose own text means the same, or a mistake of the user's; the same of lists. What the
// texts mean, a sampler can be made of.
#include "cdgrab/spec.hpp"

#include <string_view>
#include <vector>

#include "cdgrab/sampler.hpp"
#include "fuzz/any_file.hpp"

using namespace cdgrab;

namespace {

constexpr std::size_t kExamples = 12;

void require_contract(const Spec& spec) {
  const std::string text = print_spec(spec);
  fuzz::require(parse_spec(text) == spec);
  fuzz::require(print_spec(parse_spec(text)) == text);
  if (spec.name == OrderName::kFile || spec.distributed()) return;
  try {
    const Sampler sampler(kExamples, spec);
    fuzz::require(spec.name == OrderName::kWithReplacement || is_permutation(sampler.order()));
  } catch (const UserError&) {  // a block that does not divide the units
    fuzz::require(spec.name == OrderName::kRecursivePair && spec.frozen);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fuzz::value_or<UserError>([&] { require_contract(parse_spec(text)); });
  fuzz::value_or<UserError>([&] {
    for (const Spec& spec : parse_spec_list(text)) require_contract(spec);
  });
  return 0;
}
