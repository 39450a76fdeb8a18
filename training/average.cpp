// SPDX-License-Identifier: Apache-2.0
#include "training/average.hpp"

namespace cdgrab::training {

template <class T>
void TailAverage::add(std::span<const T> weights) {
  sum_.resize(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) sum_[i] += static_cast<double>(weights[i]);
  ++count_;
}

template <class T>
void TailAverage::mean(std::span<T> out) const {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(sum_[i] / static_cast<double>(count_));
}

template void TailAverage::add(std::span<const float>);
template void TailAverage::add(std::span<const double>);
template void TailAverage::mean(std::span<float>) const;
template void TailAverage::mean(std::span<double>) const;

void TailAverage::save(State& state) const {
  state.set("average.count", static_cast<std::int64_t>(count_));
  if (count_ > 0) state.set<double>("average.sum", sum_);
}

void TailAverage::load(const State& state, std::size_t size) {
  count_ = static_cast<std::uint64_t>(state.integer("average.count"));
  sum_.clear();
  if (count_ > 0) sum_ = state.elements<double>("average.sum", size);
}

}  // namespace cdgrab::training
