// SPDX-License-Identifier: Apache-2.0
// Plain text as numbers: words between white space, and a word of its own at the end of every line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cdgrab::data {

inline constexpr std::int32_t kUnknownWord = 0;  ///< "<unk>"
inline constexpr std::int32_t kEndOfLine = 1;    ///< "<eos>"

struct Text {
  std::vector<std::string> words;  ///< "<unk>", "<eos>", then the others
  std::vector<std::int32_t> train;
  std::vector<std::int32_t> validation;  ///< empty if there is none
};

struct TextOptions {
  /// Most entries of the vocabulary, the two special ones among them; at least 2.
  std::size_t max_words = 33278;
  /// Where there is no validation file: this share of the training text, its end, becomes the
  /// validation text, unseen by the vocabulary. From 0, for none, to below 1.
  double held_out = 0;
};

struct TextFiles {
  std::filesystem::path train;
  std::filesystem::path validation;  ///< empty if there is none
};

/// A file is the training text. In a folder: train.txt, with valid.txt as validation text, or with
/// test.txt; without train.txt, valid.txt is the training text and test.txt, if there, the validation
/// text. Each plain or with .gz. Throws FileError.
TextFiles find_text(const std::filesystem::path& file_or_folder);

/// UTF-8, gzipped or plain. The vocabulary is that of the training text: its most frequent words in that
/// order, of equally frequent ones those that appear first; all others are "<unk>". Throws FileError, also
/// for a text without a word, and UserError for options out of range.
Text read_text(const TextFiles& files, const TextOptions& options = {});

}  // namespace cdgrab::data
