// SPDX-License-Identifier: Apache-2.0
// Herding offline: always the vector that keeps the centred prefix sum smallest. O(n^2 d).
#include <algorithm>
#include <limits>

#include "kernels/kernels.hpp"
#include "order/orders.hpp"
#include "row_record.hpp"

namespace cdgrab {
namespace {

/// The seen vectors less their mean, and the running sum of those chosen.
class Herd {
 public:
  Herd(const RowRecord& record, std::span<const Index> units)
      : dim_(record.dim()), centred_(units.size() * dim_), norms2_(units.size()), prefix_(dim_) {
    std::vector<double> mean(dim_);
    for (const Index unit : units)
      for (std::size_t i = 0; i < dim_; ++i)
        mean[i] += record.row(unit)[i] / static_cast<double>(units.size());
    for (std::size_t k = 0; k < units.size(); ++k) {
      double* x = centred_.data() + k * dim_;
      kernels_.blend(x, 1.0, record.row(units[k]), -1.0, mean.data(), dim_);
      norms2_[k] = kernels_.dot(x, nullptr, x, dim_);
    }
  }

  /// |prefix + x_k|^2 less |prefix|^2, which is the same for all.
  [[nodiscard]] double growth(std::size_t k) const {
    return norms2_[k] + 2.0 * kernels_.dot(prefix_.data(), nullptr, centred_.data() + k * dim_, dim_);
  }

  void choose(std::size_t k) {
    kernels_.blend(prefix_.data(), 1.0, prefix_.data(), 1.0, centred_.data() + k * dim_, dim_);
  }

 private:
  const kernels::Kernels<double>& kernels_ = kernels::best<double>();
  std::size_t dim_;
  std::vector<double> centred_;
  std::vector<double> norms2_;
  std::vector<double> prefix_;
};

class Greedy final : public Order {
 public:
  [[nodiscard]] bool keeps_vectors() const override { return true; }

  /// What was not seen follows in its present order.
  [[nodiscard]] std::vector<Index> next(const EpochEnd& end) const override {
    const std::vector<Index> units = end.vectors->seen_of(end.current);
    Herd herd(*end.vectors, units);
    std::vector<std::uint8_t> chosen(units.size());
    std::vector<std::uint8_t> placed(end.current.size());
    std::vector<Index> order;
    order.reserve(end.current.size());
    for (std::size_t t = 0; t < units.size(); ++t) {
      const std::size_t best = smallest_growth(herd, chosen);
      chosen[best] = 1;
      herd.choose(best);
      order.push_back(units[best]);
      placed[units[best]] = 1;
    }
    std::copy_if(end.current.begin(), end.current.end(), std::back_inserter(order),
                 [&](Index unit) { return placed[unit] == 0; });
    return order;
  }

 private:
  static std::size_t smallest_growth(const Herd& herd, std::span<const std::uint8_t> chosen) {
    std::size_t best = chosen.size();
    double smallest = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < chosen.size(); ++k) {
      if (chosen[k] != 0) continue;
      const double growth = herd.growth(k);
      if (best != chosen.size() && growth >= smallest) continue;
      best = k;
      smallest = growth;
    }
    return best;
  }
};

}  // namespace

std::unique_ptr<Order> make_greedy() { return std::make_unique<Greedy>(); }

}  // namespace cdgrab
