// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/order.hpp"

#include <fmt/format.h>

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

std::vector<Index> read_saved(const std::string& path, std::size_t n) {
  std::vector<Index> order = read_npy_order(path);
  if (order.size() != n || !is_permutation(order))
    throw FileError("order file",
                    fmt::format("'{}' holds {} entries that {} a permutation; a permutation of "
                                "0..n-1 with n = {} is needed: save one for this data set",
                                path, order.size(), is_permutation(order) ? "are" : "are not", n));
  return order;
}

}  // namespace

std::vector<Index> Order::first(std::uint64_t seed, std::size_t n) const {
  return random_permutation({seed, Purpose::kOrder, 0, 0}, n);
}

std::unique_ptr<Order> make_order(const Spec& spec, std::size_t n) {
  switch (spec.name) {
    case OrderName::kRandomReshuffling:
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
      return make_saved(read_saved(spec.path, n));
    default:
      return std::make_unique<FoldOrder>(spec.levels());
  }
}

}  // namespace cdgrab
