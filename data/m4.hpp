// SPDX-License-Identifier: Apache-2.0
// The M4 competition's csv files: a header "V1","V2",.. and one series per line, its name and then its
// values; the fields after a series' end are empty.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cdgrab::data {

struct Series {
  std::string name;
  std::vector<float> values;  ///< finite, at least one
};

/// Gzipped or plain; fields quoted or not. Throws FileError, also for a gap inside a series, a name that
/// comes twice, and a file without a series.
std::vector<Series> read_m4(const std::filesystem::path& path);

/// The same series in both and in the same order: test[i] goes on where train[i] ends.
struct SeriesSplits {
  std::vector<Series> train;
  std::vector<Series> test;
};

/// The one *-train.csv and the one *-test.csv in `folder`, plain or with .gz, matched by name. Throws
/// FileError.
SeriesSplits read_m4_folder(const std::filesystem::path& folder);

}  // namespace cdgrab::data
