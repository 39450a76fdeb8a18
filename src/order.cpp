// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/order.hpp"

#include <fmt/format.h>

#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/npy.hpp"
#include "cdgrab/random.hpp"
#include "order/orders.hpp"

namespace cdgrab {
namespace {

class FoldOrder final : public Order {
 public:
  explicit FoldOrder(unsigned levels) : levels_(levels) {}
  [[nodiscard]] std::vector<Index> next(const EpochEnd& end) const override {
    return fold(end.current, end.codes, levels_);
  }

 private:
  unsigned levels_;
};

/// What the order underneath never hears of: it orders the whole units.
class ShortUnitLast final : public Order {
 public:
  explicit ShortUnitLast(std::unique_ptr<Order> whole) : whole_(std::move(whole)) {}

  [[nodiscard]] std::vector<Index> first(std::uint64_t seed, std::size_t n) const override {
    return with_last(whole_->first(seed, n - 1));
  }
  [[nodiscard]] std::vector<Index> next(const EpochEnd& end) const override {
    EpochEnd whole = end;
    const std::size_t count = end.current.size() - 1;
    whole.current = end.current.first(count);
    whole.codes = end.codes.first(count);
    if (keeps_initial()) whole.initial = end.initial.first(count);
    return with_last(whole_->next(whole));
  }
  [[nodiscard]] bool permutes() const override { return whole_->permutes(); }
  [[nodiscard]] bool keeps_initial() const override { return whole_->keeps_initial(); }
  [[nodiscard]] bool keeps_vectors() const override { return whole_->keeps_vectors(); }

 private:
  static std::vector<Index> with_last(std::vector<Index> whole) {
    whole.push_back(static_cast<Index>(whole.size()));
    return whole;
  }

  std::unique_ptr<Order> whole_;
};

/// The whole units of the file's order, which is of all of them.
std::vector<Index> read_saved(const std::string& path, std::size_t n, bool last_is_short) {
  std::vector<Index> order = read_npy_order(path);
  if (order.size() != n || !is_permutation(order))
    throw FileError("order file",
                    fmt::format("'{}' holds {} entries that {} a permutation; a permutation of "
                                "0..n-1 with n = {} is needed: save one for this data set",
                                path, order.size(), is_permutation(order) ? "are" : "are not", n));
  if (!last_is_short) return order;
  if (order.back() != n - 1)
    throw FileError("order file",
                    fmt::format("'{}' ends with unit {}; unit {} is short and has the last place "
                                "of every order: save one for this data set",
                                path, order.back(), n - 1));
  order.pop_back();
  return order;
}

std::unique_ptr<Order> make_whole(const Spec& spec, std::size_t n, bool last_is_short) {
  switch (spec.name) {
    case OrderName::kRandomReshuffling:
    case OrderName::kDistributedReshuffling:
      return make_random_reshuffling();
    case OrderName::kShuffleOnce:
      return make_shuffle_once();
    case OrderName::kFixed:
      return make_fixed();
    case OrderName::kFlipFlop:
      return make_flip_flop();
    case OrderName::kBlockReversal:
      return make_block_reversal(spec.block, spec.reshuffle, spec.reverse);
    case OrderName::kWithReplacement:
      return make_with_replacement();
    case OrderName::kGreedy:
      return make_greedy();
    case OrderName::kScore:
      return make_score();
    case OrderName::kFile:
      return make_saved(read_saved(spec.path, n, last_is_short));
    default:
      return std::make_unique<FoldOrder>(spec.levels());
  }
}

}  // namespace

std::vector<Index> Order::first(std::uint64_t seed, std::size_t n) const {
  return random_permutation({seed, Purpose::kOrder, 0, 0}, n);
}

std::unique_ptr<Order> make_order(const Spec& spec, std::size_t n, bool last_is_short) {
  auto whole = make_whole(spec, n, last_is_short);
  if (!last_is_short) return whole;
  return std::make_unique<ShortUnitLast>(std::move(whole));
}

}  // namespace cdgrab
