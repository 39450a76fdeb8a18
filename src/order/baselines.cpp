// SPDX-License-Identifier: Apache-2.0
// The orders that look at no vectors.
#include <algorithm>
#include <numeric>
#include <utility>

#include "cdgrab/random.hpp"
#include "order/orders.hpp"

namespace cdgrab {
namespace {

std::vector<Index> copy_of(std::span<const Index> order) { return {order.begin(), order.end()}; }

std::vector<Index> reversed(std::span<const Index> order) { return {order.rbegin(), order.rend()}; }

std::vector<Index> reshuffled(const EpochEnd& end) {
  return random_permutation({end.seed, Purpose::kOrder, end.next_epoch, 0}, end.current.size());
}

class RandomReshuffling final : public Order {
 public:
  [[nodiscard]] std::vector<Index> next(const EpochEnd& end) const override { return reshuffled(end); }
};

class ShuffleOnce final : public Order {
 public:
  [[nodiscard]] std::vector<Index> next(const EpochEnd& end) const override { return copy_of(end.current); }
};

class Fixed final : public Order {
 public:
  [[nodiscard]] std::vector<Index> first(std::uint64_t /*seed*/, std::size_t n) const override {
    return identity_order(n);
  }
  [[nodiscard]] std::vector<Index> next(const EpochEnd& end) const override { return copy_of(end.current); }
};

class FlipFlop final : public Order {
 public:
  [[nodiscard]] std::vector<Index> next(const EpochEnd& end) const override {
    return end.next_epoch % 2 == 1 ? reversed(end.current) : reshuffled(end);
  }
};

/// arXiv 2604.00260: blocks reshuffled as units, and every second epoch the reverse of the one before.
class BlockReversal final : public Order {
 public:
  BlockReversal(std::size_t block, bool reshuffle, bool reverse)
      : block_(block), reshuffle_(reshuffle), reverse_(reverse) {}

  [[nodiscard]] bool keeps_initial() const override { return true; }

  [[nodiscard]] std::vector<Index> next(const EpochEnd& end) const override {
    if (reverse_ && end.next_epoch % 2 == 1) return reversed(end.current);
    if (!reshuffle_) return copy_of(end.initial);
    const std::size_t n = end.initial.size();
    const std::size_t blocks = (n + block_ - 1) / block_;
    std::vector<Index> order;
    order.reserve(n);
    for (const Index b : random_permutation({end.seed, Purpose::kBlocks, end.next_epoch, 0}, blocks)) {
      const auto begin = end.initial.begin() + static_cast<std::ptrdiff_t>(b * block_);
      order.insert(order.end(), begin, begin + static_cast<std::ptrdiff_t>(std::min(block_, n - b * block_)));
    }
    return order;
  }

 private:
  std::size_t block_;
  bool reshuffle_;
  bool reverse_;
};

class WithReplacement final : public Order {
 public:
  [[nodiscard]] bool permutes() const override { return false; }
  [[nodiscard]] std::vector<Index> first(std::uint64_t seed, std::size_t n) const override {
    return draw(seed, 0, n);
  }
  [[nodiscard]] std::vector<Index> next(const EpochEnd& end) const override {
    return draw(end.seed, end.next_epoch, end.current.size());
  }

 private:
  static std::vector<Index> draw(std::uint64_t seed, std::uint64_t epoch, std::size_t n) {
    std::vector<Index> order(n);
    for (std::size_t t = 0; t < n; ++t)
      order[t] = static_cast<Index>(uniform_below({seed, Purpose::kReplacement, epoch, 0}, t, n));
    return order;
  }
};

/// Ascending; equal scores keep their present order. Without scores everything does.
class Score final : public Order {
 public:
  [[nodiscard]] std::vector<Index> next(const EpochEnd& end) const override {
    std::vector<Index> order = copy_of(end.current);
    if (!end.scores.empty())
      std::stable_sort(order.begin(), order.end(),
                       [&](Index a, Index b) { return end.scores[a] < end.scores[b]; });
    return order;
  }
};

class Saved final : public Order {
 public:
  explicit Saved(std::vector<Index> order) : order_(std::move(order)) {}
  [[nodiscard]] std::vector<Index> first(std::uint64_t /*seed*/, std::size_t /*n*/) const override {
    return order_;
  }
  [[nodiscard]] std::vector<Index> next(const EpochEnd& /*end*/) const override { return order_; }

 private:
  std::vector<Index> order_;
};

}  // namespace

std::unique_ptr<Order> make_random_reshuffling() { return std::make_unique<RandomReshuffling>(); }
std::unique_ptr<Order> make_shuffle_once() { return std::make_unique<ShuffleOnce>(); }
std::unique_ptr<Order> make_fixed() { return std::make_unique<Fixed>(); }
std::unique_ptr<Order> make_flip_flop() { return std::make_unique<FlipFlop>(); }
std::unique_ptr<Order> make_block_reversal(std::size_t block, bool reshuffle, bool reverse) {
  return std::make_unique<BlockReversal>(block, reshuffle, reverse);
}
std::unique_ptr<Order> make_with_replacement() { return std::make_unique<WithReplacement>(); }
std::unique_ptr<Order> make_score() { return std::make_unique<Score>(); }
std::unique_ptr<Order> make_saved(std::vector<Index> order) {
  return std::make_unique<Saved>(std::move(order));
}

}  // namespace cdgrab
