// SPDX-License-Identifier: Apache-2.0
// The makers behind make_order, one per family.
#pragma once

#include <memory>
#include <vector>

#include "cdgrab/order.hpp"

namespace cdgrab {

std::unique_ptr<Order> make_random_reshuffling();
std::unique_ptr<Order> make_shuffle_once();
std::unique_ptr<Order> make_fixed();
std::unique_ptr<Order> make_flip_flop();
std::unique_ptr<Order> make_block_reversal(std::size_t block, bool reshuffle, bool reverse);
std::unique_ptr<Order> make_with_replacement();
std::unique_ptr<Order> make_score();
std::unique_ptr<Order> make_saved(std::vector<Index> order);
std::unique_ptr<Order> make_greedy();

}  // namespace cdgrab
