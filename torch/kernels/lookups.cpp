// SPDX-License-Identifier: Apache-2.0
// Both sides are brought into the order of the table's rows, and what stands at the same row is multiplied:
// so little that the plain loops will do.
#include "kernels/lookups.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

namespace cdgrab::torch::kernels {
namespace {

/// What one example has at one row of the table.
template <class T>
struct Entry {
  std::int64_t index;
  std::size_t example;
  const T* numbers;
};

template <class T>
using Place = typename std::vector<Entry<T>>::const_iterator;

/// By row of the table, and there by example, each once: what an example has several times is added up.
template <class T>
class Sorted {
 public:
  explicit Sorted(const Lookups<T>& all) {
    std::vector<Entry<T>> found;
    for (std::size_t k = 0; k < all.batch * all.positions; ++k)
      found.push_back({all.indices[k], k / all.positions, all.right + k * all.n});
    std::sort(found.begin(), found.end(), [](const Entry<T>& x, const Entry<T>& y) {
      return std::tie(x.index, x.numbers) < std::tie(y.index, y.numbers);
    });
    sums_.resize(found.size() / 2 * all.n);  // one for two or more of them
    T* next = sums_.data();
    for (std::size_t begin = 0, end = 0; begin < found.size(); begin = end) {
      Entry<T> entry = found[begin];
      for (end = begin + 1; end < found.size() && is_same(found[end], entry); ++end) {
        std::transform(entry.numbers, entry.numbers + all.n, found[end].numbers, next, std::plus<T>());
        entry.numbers = next;
      }
      if (end > begin + 1) next += all.n;
      entries_.push_back(entry);
    }
  }
  [[nodiscard]] Place<T> begin() const { return entries_.begin(); }
  [[nodiscard]] Place<T> end() const { return entries_.end(); }
  [[nodiscard]] Place<T> end_of_row(Place<T> place) const {
    return std::find_if(place, end(), [&](const Entry<T>& entry) { return entry.index != place->index; });
  }

 private:
  static bool is_same(const Entry<T>& x, const Entry<T>& y) {
    return x.index == y.index && x.example == y.example;
  }

  std::vector<Entry<T>> entries_;
  std::vector<T> sums_;
};

/// In sums side by side, which a compiler makes lanes of.
template <class T>
double dot(const T* x, const T* y, std::size_t n) {
  constexpr std::size_t kSums = 16;
  std::array<T, kSums> sums{};
  std::size_t j = 0;
  for (; j + kSums <= n; j += kSums)
    for (std::size_t lane = 0; lane < kSums; ++lane) sums[lane] += x[j + lane] * y[j + lane];
  for (std::size_t lane = 0; j < n; ++j, ++lane) sums[lane] += x[j] * y[j];
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// visit(row of a's, row of b's) for all rows of the table that both have; a row as a pair of places.
template <class T, class Visit>
void for_common_rows(const Sorted<T>& a, const Sorted<T>& b, Visit visit) {
  Place<T> i = a.begin();
  Place<T> j = b.begin();
  while (i != a.end() && j != b.end()) {
    const Place<T> i_end = a.end_of_row(i);
    const Place<T> j_end = b.end_of_row(j);
    const std::int64_t difference = i->index - j->index;
    if (difference == 0) visit(std::pair{i, i_end}, std::pair{j, j_end});
    if (difference <= 0) i = i_end;
    if (difference >= 0) j = j_end;
  }
}

}  // namespace

template <class T>
void cross(const Lookups<T>& a, const Lookups<T>& b, T* products) {
  const bool same = a.indices == b.indices && a.right == b.right && a.batch == b.batch;
  std::vector<double> totals(a.batch * b.batch);
  const auto add = [&](auto mine, auto theirs) {
    for (Place<T> x = mine.first; x != mine.second; ++x)
      for (Place<T> y = same ? x : theirs.first; y != theirs.second; ++y)
        totals[x->example * b.batch + y->example] += dot(x->numbers, y->numbers, a.n);
  };
  const Sorted<T> left(a);
  if (same)
    for_common_rows(left, left, add);
  else
    for_common_rows(left, Sorted<T>(b), add);
  for (std::size_t i = 0; i < a.batch; ++i)
    for (std::size_t j = 0; j < b.batch; ++j)
      products[i * b.batch + j] = static_cast<T>(totals[same && j < i ? j * b.batch + i : i * b.batch + j]);
}

template void cross(const Lookups<float>&, const Lookups<float>&, float*);
template void cross(const Lookups<double>&, const Lookups<double>&, double*);

}  // namespace cdgrab::torch::kernels
