// SPDX-License-Identifier: Apache-2.0
// The vectorised kernels, compiled once per instruction set; the best is chosen at run time.
// Vectors are kept in arrays below, which the sizeless types of SVE and RVV do not allow.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vectorised.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace cdgrab::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // one lane: that is the plain loop

const Kernels<float>* kernels_f32() { return &reference<float>(); }
const Kernels<double>* kernels_f64() { return &reference<double>(); }

#else

namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vec = hn::Vec<Tag<T> >;

/// Additions of float32 in a row before the sum moves to float64: the error is at most 16 * 2^-24.
constexpr std::size_t kChain = 16;

HWY_INLINE double sum_of(Vec<double> v) {
  const Tag<double> d;
  return hn::GetLane(hn::SumOfLanes(d, v));
}

/// A float64 total of vectors of T. The constructors are spelled out because one that the compiler
/// writes itself would not carry the target's attributes.
template <class T>
struct Total;

template <>
struct Total<double> {
  Vec<double> sum;
  HWY_INLINE Total() : sum(hn::Zero(Tag<double>())) {}
  HWY_INLINE void add(Vec<double> v) { sum = hn::Add(sum, v); }
  HWY_INLINE double value() const { return sum_of(sum); }
};

template <>
struct Total<float> {
  Vec<double> low;
  Vec<double> high;
  HWY_INLINE Total() : low(hn::Zero(Tag<double>())), high(hn::Zero(Tag<double>())) {}
  HWY_INLINE void add(Vec<float> v) {
    const Tag<double> d;
    const hn::Half<Tag<float> > half;
    low = hn::Add(low, hn::PromoteTo(d, hn::LowerHalf(half, v)));
    high = hn::Add(high, hn::PromoteTo(d, hn::UpperHalf(half, v)));
  }
  HWY_INLINE double value() const { return sum_of(hn::Add(low, high)); }
};

template <class T>
HWY_INLINE Vec<T> load(const T* p) {
  return hn::LoadU(Tag<T>(), p);
}

template <class T>
HWY_INLINE void store(Vec<T> v, T* p) {
  hn::StoreU(v, Tag<T>(), p);
}

/// Of a row that is read once, what will be needed soon: to the first cache but not through the second,
/// where the accumulator stays. An address past the end does no harm.
template <class T>
HWY_INLINE void fetch_ahead(const T* p) {
  constexpr std::uintptr_t kAhead = 2048;
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + kAhead), 0, 0);
}

/// The number of products of a group.
constexpr std::size_t products_of(std::size_t group) { return group * (group + 1) / 2; }

/// The pointers of an array, `offset` elements further on: what is left for the plain loop.
template <class P>
struct Shifted {
  P at[kMaxGroup] = {};
  HWY_INLINE Shifted(P const* pointers, std::size_t group, std::size_t offset) {
    for (std::size_t k = 0; k < group; ++k) at[k] = pointers[k] + offset;
  }
};

/// chain[..] += products of v and s, in the layout of kMaxProducts.
template <class T, std::size_t G>
HWY_INLINE void multiply(const Vec<T> (&v)[G], Vec<T> s, Vec<T> (&chain)[products_of(G)]) {
  std::size_t out = 0;
  HWY_UNROLL(4)
  for (std::size_t k = 0; k < G; ++k) {
    HWY_UNROLL(4)
    for (std::size_t j = 0; j < k; ++j, ++out) chain[out] = hn::MulAdd(v[k], v[j], chain[out]);
    chain[out] = hn::MulAdd(v[k], s, chain[out]);
    ++out;
  }
}

/// Runs step(i, chain) for every whole vector of the range and sums the chains in float64.
/// Returns the first coordinate that is left over.
template <class T, std::size_t N, class Step>
HWY_INLINE std::size_t sum_chains(std::size_t dim, double* products, const Step& step) {
  const std::size_t lanes = hn::Lanes(Tag<T>());
  const std::size_t whole = dim - dim % lanes;
  Total<T> totals[N];
  for (std::size_t begin = 0; begin < whole; begin += kChain * lanes) {
    const std::size_t end = std::min(whole, begin + kChain * lanes);
    Vec<T> chain[N];
    for (auto& c : chain) c = hn::Zero(Tag<T>());
    for (std::size_t i = begin; i < end; i += lanes) step(i, chain);
    for (std::size_t p = 0; p < N; ++p) totals[p].add(chain[p]);
  }
  for (std::size_t p = 0; p < N; ++p) products[p] = totals[p].value();
  return whole;
}

template <std::size_t G, bool kCatchUp, class T>
void difference_group(const DifferencePass<T>& p, double* products) {
  T* const acc = p.accumulator;
  const T *first[G], *second[G];
  T* held[G];
  Vec<T> weight[G];
  for (std::size_t k = 0; k < G; ++k) {
    first[k] = p.first[k];
    second[k] = p.second[k];
    held[k] = p.held[k];
    weight[k] = hn::Set(Tag<T>(), kCatchUp ? p.weights[k] : T{0});
  }
  const auto step = [&](std::size_t i, Vec<T>(&chain)[products_of(G)]) HWY_ATTR {
    Vec<T> s = load(acc + i);
    if constexpr (kCatchUp) {
      for (std::size_t k = 0; k < G; ++k) s = hn::MulAdd(weight[k], load(held[k] + i), s);
      store(s, acc + i);
    }
    Vec<T> v[G];
    for (std::size_t k = 0; k < G; ++k) {
      fetch_ahead(first[k] + i);
      fetch_ahead(second[k] + i);
      v[k] = hn::Sub(load(first[k] + i), load(second[k] + i));
      store(v[k], held[k] + i);
    }
    multiply<T, G>(v, s, chain);
  };
  const std::size_t done = sum_chains<T, products_of(G)>(p.dim, products, step);
  if (done == p.dim) return;
  const Shifted<T*> held_rest(held, G, done);
  const Shifted<const T*> first_rest(first, G, done), second_rest(second, G, done);
  double rest[kMaxProducts];
  reference<T>().difference_pass(
      {acc + done, held_rest.at, p.weights, first_rest.at, second_rest.at, p.dim - done}, G, rest);
  for (std::size_t q = 0; q < products_of(G); ++q) products[q] += rest[q];
}

template <std::size_t G, bool kCatchUp, bool kMean, class T>
void centred_group(const CentredPass<T>& p, double* products) {
  T *const acc = p.accumulator, *const total = p.total;
  const T* const centre = p.centre;
  const T *rows[G], *last[G];
  Vec<T> weight[G];
  for (std::size_t k = 0; k < G; ++k) {
    rows[k] = p.rows[k];
    last[k] = kCatchUp ? p.last[k] : nullptr;
    weight[k] = hn::Set(Tag<T>(), kCatchUp ? p.weights[k] : T{0});
  }
  const auto step = [&](std::size_t i, Vec<T>(&chain)[products_of(G)]) HWY_ATTR {
    Vec<T> s = load(acc + i);
    const Vec<T> c = kMean ? load(centre + i) : hn::Zero(Tag<T>());
    if constexpr (kCatchUp) {
      Vec<T> t = kMean ? load(total + i) : c;
      for (std::size_t k = 0; k < G; ++k) {
        Vec<T> v = load(last[k] + i);
        if constexpr (kMean) {
          v = hn::Sub(v, c);
          t = hn::Add(t, v);
        }
        s = hn::MulAdd(weight[k], v, s);
      }
      store(s, acc + i);
      if constexpr (kMean) store(t, total + i);
    }
    Vec<T> v[G];
    for (std::size_t k = 0; k < G; ++k) v[k] = kMean ? hn::Sub(load(rows[k] + i), c) : load(rows[k] + i);
    multiply<T, G>(v, s, chain);
  };
  const std::size_t done = sum_chains<T, products_of(G)>(p.dim, products, step);
  if (done == p.dim) return;
  const Shifted<const T*> rows_rest(rows, G, done);
  const Shifted<const T*> last_rest(kCatchUp ? last : rows, G, done);
  double rest[kMaxProducts];
  reference<T>().centred_pass({acc + done, kMean ? total + done : nullptr, kMean ? centre + done : nullptr,
                               kCatchUp ? last_rest.at : nullptr, p.weights, rows_rest.at, p.dim - done},
                              G, rest);
  for (std::size_t q = 0; q < products_of(G); ++q) products[q] += rest[q];
}

template <bool kCatchUp, class T>
void difference_any(const DifferencePass<T>& p, std::size_t group, double* products) {
  switch (group) {
    case 1:
      return difference_group<1, kCatchUp>(p, products);
    case 2:
      return difference_group<2, kCatchUp>(p, products);
    case 3:
      return difference_group<3, kCatchUp>(p, products);
    default:
      return difference_group<4, kCatchUp>(p, products);
  }
}

template <bool kCatchUp, bool kMean, class T>
void centred_any(const CentredPass<T>& p, std::size_t group, double* products) {
  switch (group) {
    case 1:
      return centred_group<1, kCatchUp, kMean>(p, products);
    case 2:
      return centred_group<2, kCatchUp, kMean>(p, products);
    case 3:
      return centred_group<3, kCatchUp, kMean>(p, products);
    default:
      return centred_group<4, kCatchUp, kMean>(p, products);
  }
}

template <class T>
void difference_pass(const DifferencePass<T>& p, std::size_t group, double* products) {
  return p.weights == nullptr ? difference_any<false>(p, group, products)
                              : difference_any<true>(p, group, products);
}

template <class T>
void centred_pass(const CentredPass<T>& p, std::size_t group, double* products) {
  if (p.last == nullptr)
    return p.centre == nullptr ? centred_any<false, false>(p, group, products)
                               : centred_any<false, true>(p, group, products);
  return p.centre == nullptr ? centred_any<true, false>(p, group, products)
                             : centred_any<true, true>(p, group, products);
}

template <std::size_t G, class T>
std::size_t combine_group(const Combination<T>& c) {
  const std::size_t lanes = hn::Lanes(Tag<T>());
  const std::size_t whole = c.dim - c.dim % lanes;
  const T *first[G], *second[G];
  Vec<T> weight[G];
  for (std::size_t k = 0; k < G; ++k) {
    first[k] = c.first[k];
    second[k] = c.second == nullptr ? nullptr : c.second[k];
    weight[k] = hn::Set(Tag<T>(), c.weights[k]);
  }
  for (std::size_t i = 0; i < whole; i += lanes) {
    Vec<T> s = load(c.accumulator + i);
    for (std::size_t k = 0; k < G; ++k) {
      Vec<T> v = load(first[k] + i);
      if (second[k] != nullptr) v = hn::Sub(v, load(second[k] + i));
      s = hn::MulAdd(weight[k], v, s);
    }
    store(s, c.accumulator + i);
  }
  return whole;
}

template <class T>
void combine(const Combination<T>& c) {
  std::size_t done = 0;
  switch (c.count) {
    case 1:
      done = combine_group<1>(c);
      break;
    case 2:
      done = combine_group<2>(c);
      break;
    case 3:
      done = combine_group<3>(c);
      break;
    default:
      done = combine_group<4>(c);
      break;
  }
  if (done == c.dim) return;
  Shifted<const T*> first(c.first, c.count, done);
  const T* second[kMaxGroup] = {};
  for (std::size_t k = 0; k < c.count; ++k)
    second[k] = c.second == nullptr || c.second[k] == nullptr ? nullptr : c.second[k] + done;
  reference<T>().combine({c.accumulator + done, c.weights, first.at, second, c.count, c.dim - done});
}

/// Four chains, since one addition waits for the one before.
template <bool kMinus, class T>
double dot_of(const T* x, const T* minus, const T* y, std::size_t dim) {
  constexpr std::size_t kChains = 4;
  const std::size_t lanes = hn::Lanes(Tag<T>());
  const auto term = [&](std::size_t i, Vec<T> sum) HWY_ATTR {
    Vec<T> v = load(x + i);
    if constexpr (kMinus) v = hn::Sub(v, load(minus + i));
    return hn::MulAdd(v, load(y + i), sum);
  };
  const std::size_t step = kChains * lanes;
  const std::size_t done = dim - dim % step;
  Total<T> total;
  for (std::size_t begin = 0; begin < done; begin += kChain * step) {
    const std::size_t end = std::min(done, begin + kChain * step);
    Vec<T> chain[kChains];
    for (auto& c : chain) c = hn::Zero(Tag<T>());
    for (std::size_t i = begin; i < end; i += step)
      for (std::size_t c = 0; c < kChains; ++c) chain[c] = term(i + c * lanes, chain[c]);
    for (auto& c : chain) total.add(c);
  }
  const double rest = reference<T>().dot(x + done, kMinus ? minus + done : nullptr, y + done, dim - done);
  return total.value() + rest;
}

template <class T>
double dot(const T* x, const T* minus, const T* y, std::size_t dim) {
  return minus == nullptr ? dot_of<false>(x, minus, y, dim) : dot_of<true>(x, minus, y, dim);
}

template <bool kMinus, class T>
double add_and_dot_of(T* accumulator, T weight, const T* x, const T* minus, T* keep, const T* y,
                      std::size_t dim) {
  const Vec<T> w = hn::Set(Tag<T>(), weight);
  const auto step = [&](std::size_t i, Vec<T>(&chain)[1]) HWY_ATTR {
    Vec<T> v = load(x + i);
    if constexpr (kMinus) {
      v = hn::Sub(v, load(minus + i));
      store(v, keep + i);
    }
    store(hn::MulAdd(w, v, load(accumulator + i)), accumulator + i);
    chain[0] = hn::MulAdd(v, load(y + i), chain[0]);
  };
  double product = 0.0;
  const std::size_t done = sum_chains<T, 1>(dim, &product, step);
  return product + reference<T>().add_and_dot(accumulator + done, weight, x + done,
                                              kMinus ? minus + done : nullptr, kMinus ? keep + done : nullptr,
                                              y + done, dim - done);
}

template <class T>
double add_and_dot(T* accumulator, T weight, const T* x, const T* minus, T* keep, const T* y,
                   std::size_t dim) {
  return minus == nullptr ? add_and_dot_of<false>(accumulator, weight, x, minus, keep, y, dim)
                          : add_and_dot_of<true>(accumulator, weight, x, minus, keep, y, dim);
}

template <class T>
void blend(T* out, T a_weight, const T* a, T b_weight, const T* b, std::size_t dim) {
  const std::size_t lanes = hn::Lanes(Tag<T>());
  const std::size_t whole = dim - dim % lanes;
  const Vec<T> wa = hn::Set(Tag<T>(), a_weight), wb = hn::Set(Tag<T>(), b_weight);
  for (std::size_t i = 0; i < whole; i += lanes) {
    Vec<T> v = hn::Mul(wa, load(a + i));
    if (b != nullptr) v = hn::MulAdd(wb, load(b + i), v);
    store(v, out + i);
  }
  reference<T>().blend(out + whole, a_weight, a + whole, b_weight, b == nullptr ? nullptr : b + whole,
                       dim - whole);
}

template <class T>
bool finite(const T* x, std::size_t dim) {
  const Tag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t whole = dim - dim % lanes;
  for (std::size_t i = 0; i < whole; i += lanes) {
    const Vec<T> v = load(x + i);
    // x - x is 0 for a finite x and NaN for any other.
    if (!hn::AllTrue(d, hn::Eq(hn::Sub(v, v), hn::Zero(d)))) return false;
  }
  return reference<T>().finite(x + whole, dim - whole);
}

/// Rows and columns of the block of products whose sums stay in registers.
constexpr std::size_t kBlock = 4;

/// out[k][j] += <rows[k], columns[j]> over whole vectors of `dim`. R x C sums at once: R + C loads serve R *
/// C products.
template <std::size_t R, std::size_t C, class T>
void gram_block(const T* const* rows, const T* const* columns, std::size_t dim, double* out) {
  const T *x[R], *y[C];
  for (std::size_t k = 0; k < R; ++k) x[k] = rows[k];
  for (std::size_t j = 0; j < C; ++j) y[j] = columns[j];
  const auto step = [&](std::size_t i, Vec<T>(&chain)[R * C]) HWY_ATTR {
    Vec<T> v[C];
    for (std::size_t j = 0; j < C; ++j) v[j] = load(y[j] + i);
    HWY_UNROLL(4)
    for (std::size_t k = 0; k < R; ++k) {
      const Vec<T> u = load(x[k] + i);
      HWY_UNROLL(4)
      for (std::size_t j = 0; j < C; ++j) chain[k * C + j] = hn::MulAdd(u, v[j], chain[k * C + j]);
    }
  };
  double sums[R * C];
  sum_chains<T, R * C>(dim, sums, step);
  for (std::size_t p = 0; p < R * C; ++p) out[p] += sums[p];
}

template <std::size_t R, class T>
void gram_rows(const T* const* rows, const T* const* columns, std::size_t count, std::size_t dim,
               double* out) {
  switch (count) {
    case 1:
      return gram_block<R, 1>(rows, columns, dim, out);
    case 2:
      return gram_block<R, 2>(rows, columns, dim, out);
    case 3:
      return gram_block<R, 3>(rows, columns, dim, out);
    default:
      return gram_block<R, 4>(rows, columns, dim, out);
  }
}

template <class T>
void gram_any(const T* const* rows, std::size_t r, const T* const* columns, std::size_t c, std::size_t dim,
              double* out) {
  switch (r) {
    case 1:
      return gram_rows<1>(rows, columns, c, dim, out);
    case 2:
      return gram_rows<2>(rows, columns, c, dim, out);
    case 3:
      return gram_rows<3>(rows, columns, c, dim, out);
    default:
      return gram_rows<4>(rows, columns, c, dim, out);
  }
}

/// Block by block of products, on a tile of coordinates that stays in the second cache meanwhile.
template <class T>
void gram(const T* const* rows, std::size_t count, std::size_t dim, double* out) {
  const std::size_t lanes = hn::Lanes(Tag<T>());
  constexpr std::size_t kTile = 8192 / sizeof(T);
  const std::size_t whole = dim - dim % lanes;
  std::fill_n(out, count * (count + 1) / 2, 0.0);
  const auto at = [out](std::size_t k, std::size_t j) { return out + k * (k + 1) / 2 + j; };
  for (std::size_t begin = 0; begin < whole; begin += kTile) {
    const std::size_t length = std::min(kTile, whole - begin);
    for (std::size_t k = 0; k < count; k += kBlock) {
      const std::size_t r = std::min(kBlock, count - k);
      const Shifted<const T*> x(rows + k, r, begin);
      for (std::size_t j = 0; j <= k; j += kBlock) {
        const std::size_t c = std::min(kBlock, count - j);
        const Shifted<const T*> y(rows + j, c, begin);
        double sums[kBlock * kBlock] = {};
        gram_any<T>(x.at, r, y.at, c, length, sums);
        for (std::size_t p = 0; p < r; ++p)
          for (std::size_t q = 0; q < c && j + q <= k + p; ++q) *at(k + p, j + q) += sums[p * c + q];
      }
    }
  }
  if (whole == dim) return;
  for (std::size_t k = 0; k < count; ++k)
    for (std::size_t j = 0; j <= k; ++j)
      *at(k, j) += reference<T>().dot(rows[k] + whole, nullptr, rows[j] + whole, dim - whole);
}

HWY_INLINE Vec<double> load_as_double(const double* p) { return load(p); }
HWY_INLINE Vec<double> load_as_double(const float* p) {
  const Tag<double> d;
  const hn::Rebind<float, Tag<double> > half;
  return hn::PromoteTo(d, hn::LoadU(half, p));
}

template <class T>
PrefixNorms advance_prefix(double* prefix, const T* x, const double* mean, std::size_t dim) {
  const Tag<double> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t whole = dim - dim % lanes;
  Vec<double> squared = hn::Zero(d), largest = hn::Zero(d);
  for (std::size_t i = 0; i < whole; i += lanes) {
    const Vec<double> v = hn::Add(load(prefix + i), hn::Sub(load_as_double(x + i), load(mean + i)));
    store(v, prefix + i);
    squared = hn::MulAdd(v, v, squared);
    largest = hn::Max(largest, hn::Abs(v));
  }
  const PrefixNorms rest =
      reference<T>().advance_prefix(prefix + whole, x + whole, mean + whole, dim - whole);
  return {sum_of(squared) + rest.squared, std::max(hn::GetLane(hn::MaxOfLanes(d, largest)), rest.largest)};
}

template <class T>
constexpr Kernels<T> kKernels = {difference_pass<T>, centred_pass<T>, combine<T>, dot<T>,
                                 add_and_dot<T>,     blend<T>,        finite<T>,  gram<T>,
                                 advance_prefix<T>};

}  // namespace

const Kernels<float>* kernels_f32() { return &kKernels<float>; }
const Kernels<double>* kernels_f64() { return &kKernels<double>; }

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace cdgrab::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cdgrab::kernels {

HWY_EXPORT(kernels_f32);
HWY_EXPORT(kernels_f64);

template <>
const Kernels<float>& best<float>() {
  return *HWY_DYNAMIC_DISPATCH(kernels_f32)();
}

template <>
const Kernels<double>& best<double>() {
  return *HWY_DYNAMIC_DISPATCH(kernels_f64)();
}

}  // namespace cdgrab::kernels
#endif  // HWY_ONCE
