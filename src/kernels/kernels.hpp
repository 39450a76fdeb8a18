// SPDX-License-Identifier: Apache-2.0
// The loops over coordinates. Spans in, nothing allocated, any length, no alignment asked for.
// Products of float32 are summed in chains of at most 16 before they go into float64, so that the
// error stays below 1e-6 |x||y| for any length (docs/math.md, section 7).
#pragma once

#include <cstddef>
#include <cstdint>

namespace cdgrab::kernels {

/// The most vectors that one pass decides together.
inline constexpr std::size_t kMaxGroup = 4;

/// Products of a group of g vectors v_k: out[k*(k+1)/2 + k] = <v_k, accumulator>, and for j < k
/// out[k*(k+1)/2 + j] = <v_k, v_j>.
inline constexpr std::size_t kMaxProducts = kMaxGroup * (kMaxGroup + 1) / 2;

/// One read of everything: catch up with the last group's signs, form the next group, take its products.
///   accumulator += sum_k weights[k] * held[k];  held[k] = first[k] - second[k];  products of held
/// weights may be null: there is nothing to catch up with, and held is only written.
template <class T>
struct DifferencePass {
  T* accumulator;
  T* const* held;
  const T* weights;
  const T* const* first;
  const T* const* second;
  std::size_t dim;
};

/// The same where every vector is a row less one centre (or the bare row, centre null); the last
/// group is read again rather than kept, since keeping it would cost a write per row.
///   accumulator += sum_k weights[k] * v(last[k]);  total += sum_k v(last[k]);  products of v(rows[k])
/// v(x) = x - centre. centre and total are both given or both null; so are last and weights.
template <class T>
struct CentredPass {
  T* accumulator;
  T* total;
  const T* centre;
  const T* const* last;
  const T* weights;
  const T* const* rows;
  std::size_t dim;
};

/// accumulator += sum_k weights[k] * (first[k] - second[k]), in the order of k; second may be null,
/// the array or an entry of it. 1 <= count <= kMaxGroup.
template <class T>
struct Combination {
  T* accumulator;
  const T* weights;
  const T* const* first;
  const T* const* second;
  std::size_t count;
  std::size_t dim;
};

struct PrefixNorms {
  double squared = 0.0;
  double largest = 0.0;
};

/// One implementation of everything. `group` is the number of vectors, 1..kMaxGroup.
template <class T>
struct Kernels {
  void (*difference_pass)(const DifferencePass<T>&, std::size_t group, double* products);
  void (*centred_pass)(const CentredPass<T>&, std::size_t group, double* products);
  void (*combine)(const Combination<T>&);
  /// <x - minus, y>; minus may be null.
  double (*dot)(const T* x, const T* minus, const T* y, std::size_t dim);
  /// accumulator += weight * v and <v, y> in one read, v = x - minus. With minus, v is also written to
  /// `keep`; without, both are null. y is not the accumulator.
  double (*add_and_dot)(T* accumulator, T weight, const T* x, const T* minus, T* keep, const T* y,
                        std::size_t dim);
  /// out = a_weight * a + b_weight * b; b may be null, out may be a or b.
  void (*blend)(T* out, T a_weight, const T* a, T b_weight, const T* b, std::size_t dim);
  bool (*finite)(const T* x, std::size_t dim);
  /// out[k*(k+1)/2 + j] = <rows[k], rows[j]> for j <= k < count.
  void (*gram)(const T* const* rows, std::size_t count, std::size_t dim, double* out);
  /// prefix += x - mean (prefix and mean in float64); the norms of the new prefix.
  PrefixNorms (*advance_prefix)(double* prefix, const T* x, const double* mean, std::size_t dim);
};

/// The best for this machine, chosen once.
template <class T>
const Kernels<T>& best();

/// The plain loops that `best` is tested against.
template <class T>
const Kernels<T>& reference();

}  // namespace cdgrab::kernels
