// SPDX-License-Identifier: Apache-2.0
#include "training/ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "cdgrab/error.hpp"

namespace cdgrab::training {

std::vector<std::byte> bytes_of_first(Communicator& communicator, std::span<const std::byte> mine) {
  return communicator.all_gather(communicator.rank() == 0 ? mine : std::span<const std::byte>{}).front();
}

std::vector<std::uint64_t> words_of_all(Communicator& communicator, std::uint64_t mine) {
  std::vector<std::uint64_t> words(communicator.ranks());
  std::vector<Communicator::Received> pieces;
  for (std::uint64_t& word : words) pieces.push_back(std::as_writable_bytes(std::span(&word, 1)));
  communicator.all_gather(std::as_bytes(std::span(&mine, 1)), pieces);
  return words;
}

void require_same_weights(Communicator& communicator, std::uint64_t hash) {
  const std::vector<std::uint64_t> hashes = words_of_all(communicator, hash);
  std::string others;
  for (std::size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r] != hashes[0])
      others += fmt::format("{}rank {} ({:016x})", others.empty() ? "" : ", ", r, hashes[r]);
  if (others.empty()) return;
  throw CommunicationError(
      "weights", fmt::format("rank 0 has {:016x} and others have not: {}; all ranks must have the same "
                             "program, data and kind of processor: go on from the last checkpoint",
                             hashes[0], others));
}

}  // namespace cdgrab::training
