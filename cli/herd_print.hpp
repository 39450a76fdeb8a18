// SPDX-License-Identifier: Apache-2.0
// What `cdgrab herd` writes on stdout, as it goes: a table for people or JSON lines for machines.
#pragma once

#include <cstddef>
#include <memory>

#include "herd.hpp"

namespace cdgrab::cli {

class HerdPrinter {
 public:
  virtual ~HerdPrinter() = default;
  /// Lanes have their labels; bounds are still to come.
  virtual void begin(const HerdResult& result) = 0;
  /// bounds[round] of every lane is there.
  virtual void round(const HerdResult& result, std::size_t round) = 0;
  virtual void end(const HerdResult& result) = 0;
};

std::unique_ptr<HerdPrinter> make_table_printer();
std::unique_ptr<HerdPrinter> make_json_printer(const HerdOptions& options);

}  // namespace cdgrab::cli
