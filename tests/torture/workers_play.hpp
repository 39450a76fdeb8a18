// SPDX-License-Identifier: Apache-2.0
// A run of many workers that may be stopped before every step (every_step.hpp), on any ranks.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cdgrab/cdgrab.hpp"

namespace cdgrab::torture {

inline constexpr std::size_t kDim = 6;

/// The vectors of these examples' units in this epoch: real numbers, so that a register that was rounded anew
/// shows.
template <class T>
std::vector<T> vectors_of(std::uint64_t epoch, const std::vector<Index>& examples) {
  std::vector<T> rows;
  for (const Index example : examples)
    for (std::size_t j = 0; j < kDim; ++j)
      rows.push_back(static_cast<T>(normal({7, Purpose::kData, epoch, 0}, example * kDim + j)));
  return rows;
}

struct Size {
  std::size_t examples;
  std::size_t batch;
};

/// What this rank has of it; a step is a round of all ranks.
class WorkersPlay {
 public:
  /// `local`: saved by every rank for itself.
  WorkersPlay(const Spec& spec, Size size, std::size_t workers, Communicator& communicator, bool local,
              bool overlap = false)
      : size_(size),
        local_(local),
        communicator_(communicator),
        sampler_(Shares::strided(size.examples, workers), spec, communicator,
                 {.seed = 3, .overlap = overlap, .whole_up_to = 0}) {}

  [[nodiscard]] bool over() const { return sampler_.epoch() == 2; }
  std::vector<Index> step() {
    std::vector<Index> all;
    for (std::size_t h = 0; h < sampler_.hosted(); ++h) {
      const std::size_t worker = sampler_.first_worker() + h;
      const std::vector<Index> handed = sampler_.next(worker, size_.batch);
      all.insert(all.end(), handed.begin(), handed.end());
      const std::size_t count = sampler_.outstanding(worker);
      const auto rows = vectors_of<float>(sampler_.epoch(), sampler_.oldest_outstanding(worker, 0, count));
      sampler_.deposit(worker, Rows<float>{rows.data(), count, kDim});
    }
    if (everywhere(all.size()) == 0)
      sampler_.end_epoch();
    else
      sampler_.step();
    return all;
  }
  [[nodiscard]] std::vector<std::byte> save() {
    if (local_) return encode_state(sampler_.local_state());
    State state = sampler_.save();
    state.set("step", std::int64_t{0});  // to save is a round, and counts as one
    return encode_state(state);
  }
  void load(std::span<const std::byte> bytes) { sampler_.load(decode_state(bytes, "test")); }

 private:
  /// Ranks are saved after the same step, so that none may be at the end of the epoch before the others.
  [[nodiscard]] double everywhere(std::size_t count) {
    double sum = static_cast<double>(count);
    communicator_.sum({&sum, 1});
    return sum;
  }

  Size size_;
  bool local_;
  Communicator& communicator_;
  DistributedSampler sampler_;
};

inline const std::vector<std::string> kOfManyWorkers = {"cd-pair",
                                                        "cd-pair; tie=minus",
                                                        "cd-pair; sign=walk,c=3",
                                                        "cd-pair; sign=halving",
                                                        "cd-pair; sketch=gauss:3",
                                                        "id-pair",
                                                        "id-pair; sign=walk,c=3",
                                                        "id-pair; sign=halving",
                                                        "d-rr"};

}  // namespace cdgrab::torture
