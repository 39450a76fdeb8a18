// SPDX-License-Identifier: Apache-2.0
#include "factors.hpp"

#include <array>
#include <utility>

#include "kernels/lookups.hpp"
#include "products.hpp"

namespace cdgrab::torch {
namespace {

std::size_t bytes_of(const Tensor& tensor) { return tensor.defined() ? tensor.nbytes() : 0; }

/// (B, T, n) -> (B*T, n).
Tensor flat(const Tensor& factor) {
  return factor.reshape({factor.size(0) * factor.size(1), factor.size(2)});
}

/// Calls visit(begin, end, factors of these examples): all at once unless expanding them takes much.
template <class Visit>
void by_examples(const Factors& f, Visit visit) {
  if (!f.expand) return visit(0, f.batch(), f);
  in_slices(f.batch(), f.positions * f.n * f.right.element_size(),
            [&](std::int64_t begin, std::int64_t end) { visit(begin, end, f.examples(begin, end)); });
}

/// Then only what stands in the same rows of the table is multiplied.
bool are_lookups_here(const Factors& a, const Factors& b) {
  return a.is_lookup() && b.is_lookup() && a.right.is_cpu() &&
         a.right.scalar_type() == b.right.scalar_type() &&
         (a.right.scalar_type() == at::kFloat || a.right.scalar_type() == at::kDouble);
}

template <class T>
Tensor cross_of_lookups(const Factors& a, const Factors& b) {
  const std::array<Tensor, 4> all = {a.indices.to(at::kLong).contiguous(), a.right.contiguous(),
                                     b.indices.to(at::kLong).contiguous(), b.right.contiguous()};
  const auto lookups = [&](const Factors& f, const Tensor& indices, const Tensor& right) {
    return kernels::Lookups<T>{indices.const_data_ptr<std::int64_t>(), right.const_data_ptr<T>(),
                               static_cast<std::size_t>(f.batch()), static_cast<std::size_t>(f.positions),
                               static_cast<std::size_t>(f.n)};
  };
  const Tensor products = at::empty({a.batch(), b.batch()}, a.options());
  kernels::cross(lookups(a, all[0], all[1]), lookups(b, all[2], all[3]), products.mutable_data_ptr<T>());
  return products;
}

/// Products of the left factors' rows, one for every position of `a` and of `b`. Those of unit vectors are
/// looked up.
Tensor left_products(const Factors& a, const Factors& b) {
  if (!a.is_lookup() && !b.is_lookup()) return times_transposed(flat(a.left), flat(b.left));
  if (!a.is_lookup()) return flat(a.left).index_select(1, b.indices.reshape({-1}));
  if (!b.is_lookup()) return flat(b.left).t().index_select(0, a.indices.reshape({-1}));
  return b.indices.reshape({1, -1}).eq(a.indices.reshape({-1, 1}));
}

/// (B, B'): (left left'^T) o (right right'^T), added up over the positions; both are expanded.
Tensor pair_products(const Factors& a, const Factors& b) {
  Tensor pairs = times_transposed(flat(a.right), flat(b.right));
  pairs.mul_(left_products(a, b));
  if (a.positions == 1 && b.positions == 1) return pairs;
  return pairs.view({a.batch(), a.positions, b.batch(), b.positions}).sum(at::IntArrayRef{1, 3});
}

/// to (B, B') = pair_products(a, b), for some of the first at a time.
void fill_products(const Factors& a, const Factors& b, const Tensor& to) {
  const std::int64_t pairs_each = a.positions * b.batch() * b.positions;
  in_slices(a.batch(), pairs_each * to.element_size(), [&](std::int64_t first, std::int64_t last) {
    to.slice(0, first, last).copy_(pair_products(a.examples(first, last), b));
  });
}

/// total (B, B) = pair_products(all, all), most pairs once: a part of the examples with themselves and those
/// before, and then the other way round.
void fill_own_products(const Factors& all, const Tensor& total) {
  constexpr std::int64_t kParts = 4;
  constexpr std::int64_t kWorthACall = 64;
  const std::int64_t step = std::max((all.batch() + kParts - 1) / kParts, kWorthACall / all.positions);
  if (step >= all.batch()) return fill_products(all, all, total);
  for (std::int64_t begin = 0; begin < all.batch(); begin += step) {
    const std::int64_t end = std::min(begin + step, all.batch());
    const Tensor own = total.slice(0, begin, end);
    fill_products(all.examples(begin, end), all.examples(0, end), own.slice(1, 0, end));
    total.slice(0, 0, begin).slice(1, begin, end).copy_(own.slice(1, 0, begin).t());
  }
}

/// (B): the products of each example's factors with themselves; these are expanded.
Tensor own_products(const Factors& f) {
  if (f.positions == 1) {
    const Tensor squares = squares_of_rows(f.right.squeeze(1));
    return f.is_lookup() ? squares : squares * squares_of_rows(f.left.squeeze(1));
  }
  const Tensor pairs = at::bmm(f.right, f.right.transpose(1, 2));
  if (f.is_lookup())
    pairs.mul_(f.indices.unsqueeze(1).eq(f.indices.unsqueeze(2)));
  else
    pairs.mul_(at::bmm(f.left, f.left.transpose(1, 2)));
  return pairs.sum(at::IntArrayRef{1, 2});
}

/// (B, T, ..) with zeros after T, up to `positions`.
Tensor padded(const Tensor& factor, std::int64_t positions) {
  if (!factor.defined() || factor.size(1) == positions) return factor;
  std::vector<std::int64_t> shape = factor.sizes().vec();
  shape[1] = positions - factor.size(1);
  return at::cat({factor, at::zeros(shape, factor.options())}, 1);
}

}  // namespace

Factors Factors::of_matrix(Tensor left, Tensor right) {
  Factors f;
  f.positions = right.size(1);
  f.m = left.size(2);
  f.n = right.size(2);
  f.left = std::move(left);
  f.right = std::move(right);
  return f;
}

Factors Factors::of_lookup(Tensor indices, Tensor right, std::int64_t m) {
  Factors f;
  f.positions = right.size(1);
  f.m = m;
  f.n = right.size(2);
  f.indices = std::move(indices);
  f.right = std::move(right);
  return f;
}

Factors Factors::of_expanded(Tensor left, Tensor right, std::int64_t n,
                             std::function<Tensor(const Tensor&)> expand) {
  Factors f;
  f.positions = left.size(1);
  f.m = left.size(2);
  f.n = n;
  f.left = std::move(left);
  f.right = std::move(right);
  f.expand = std::move(expand);
  return f;
}

Factors Factors::narrowed(std::int64_t begin, std::int64_t end) const {
  Factors part = *this;
  if (left.defined()) part.left = left.slice(0, begin, end);
  if (indices.defined()) part.indices = indices.slice(0, begin, end);
  part.right = right.slice(0, begin, end);
  return part;
}

Factors Factors::examples(std::int64_t begin, std::int64_t end) const {
  Factors part = narrowed(begin, end);
  if (expand) part.right = expand(part.right);
  part.expand = nullptr;
  part.project = nullptr;
  part.pull = nullptr;
  part.form = nullptr;
  return part;
}

Factors Factors::select(const Tensor& index) const {
  Factors part = *this;
  if (left.defined()) part.left = left.index_select(0, index);
  if (indices.defined()) part.indices = indices.index_select(0, index);
  part.right = right.index_select(0, index);
  return part;
}

Factors Factors::rows(std::int64_t begin, std::int64_t end) const {
  Factors part = expand ? examples(0, batch()) : *this;
  part.m = end - begin;
  if (!is_lookup()) {
    part.left = left.slice(2, begin, end);
    return part;
  }
  const Tensor inside = indices.ge(begin).logical_and_(indices.lt(end));
  part.positions = std::max<std::int64_t>(1, inside.sum(1).max().item<std::int64_t>());
  const Tensor places = inside.to(at::kByte).argsort(/*stable=*/true, 1, /*descending=*/true);
  const Tensor first = places.slice(1, 0, part.positions);
  const Tensor counts = inside.gather(1, first);
  part.indices = (indices.gather(1, first) - begin).mul_(counts);
  part.right = right.gather(1, first.unsqueeze(-1).expand({-1, -1, n})).mul_(counts.unsqueeze(-1));
  return part;
}

Factors Factors::columns(std::int64_t begin, std::int64_t end) const {
  Factors part = expand ? examples(0, batch()) : *this;
  part.n = end - begin;
  part.right = part.right.slice(2, begin, end);
  return part;
}

Factors Factors::transposed() const {
  const Factors whole = expand ? examples(0, batch()) : *this;
  return of_matrix(whole.right, whole.left);
}

Factors Factors::cat(std::vector<Factors> all) {
  std::int64_t positions = 0;
  for (Factors& f : all) {
    if (f.expand) f = f.examples(0, f.batch());
    positions = std::max(positions, f.positions);
  }
  std::vector<Tensor> lefts;
  std::vector<Tensor> rights;
  for (const Factors& f : all) {
    lefts.push_back(padded(f.is_lookup() ? f.indices : f.left, positions));
    rights.push_back(padded(f.right, positions));
  }
  const Tensor left = at::cat(lefts);
  const Tensor right = at::cat(rights);
  return all.front().is_lookup() ? of_lookup(left, right, all.front().m) : of_matrix(left, right);
}

std::size_t Factors::bytes() const { return bytes_of(left) + bytes_of(indices) + bytes_of(right); }

/// A unit vector's are none.
double Factors::operations_of_forming() const {
  return static_cast<double>(batch() * positions) * static_cast<double>(is_lookup() ? 1 : m) *
         static_cast<double>(n);
}

double Factors::operations_of_cross(const Factors& other) const {
  // At most: were all examples of one side to look up the same.
  if (are_lookups_here(*this, other))
    return static_cast<double>(batch() * positions) * static_cast<double>(other.batch() * n);
  const double pairs =
      static_cast<double>(batch() * positions) * static_cast<double>(other.batch() * other.positions);
  return pairs * static_cast<double>(is_lookup() || other.is_lookup() ? n : m + n);
}

void Factors::add_rows(const Tensor& rows, std::int64_t first, double beta, double alpha) const {
  const std::int64_t count = rows.size(1);
  if (form && beta == 0.0 && rows.scalar_type() == at::kFloat && rows.is_contiguous())
    return form(count == m ? left : left.slice(2, first, first + count), right, alpha, rows);
  if (!is_lookup()) {
    by_examples(*this, [&](std::int64_t begin, std::int64_t end, const Factors& part) {
      const Tensor to = rows.slice(0, begin, end);
      multiply_transposed(part.left.slice(2, first, first + count), part.right, alpha, beta, to);
    });
    return;
  }
  const Tensor inside = indices.ge(first).logical_and_(indices.lt(first + count));
  const Tensor start = at::arange(batch(), indices.options()).mul_(count).unsqueeze(1);
  const Tensor target = at::where(inside, indices - first, at::zeros({}, indices.options())) + start;
  const Tensor added = count == m ? right : right * inside.unsqueeze(-1);
  rows.view({batch() * count, n}).index_add_(0, target.reshape({-1}), flat(added), alpha);
}

Tensor Factors::cross(const Factors& other) const {
  if (are_lookups_here(*this, other))
    return right.scalar_type() == at::kDouble ? cross_of_lookups<double>(*this, other)
                                              : cross_of_lookups<float>(*this, other);
  Tensor total = at::empty({batch(), other.batch()}, options());
  by_examples(*this, [&](std::int64_t begin, std::int64_t end, const Factors& mine) {
    const auto fill = [&](std::int64_t from, std::int64_t to, const Factors& theirs) {
      fill_products(mine, theirs, total.slice(0, begin, end).slice(1, from, to));
    };
    if (this == &other && mine.batch() == batch())
      fill_own_products(mine, total);
    else
      by_examples(other, fill);
  });
  return total;
}

Tensor Factors::squared_norms() const {
  Tensor total = at::empty({batch()}, options());
  by_examples(*this, [&](std::int64_t begin, std::int64_t end, const Factors& some) {
    in_slices(end - begin, positions * positions * total.element_size(),
              [&](std::int64_t first, std::int64_t last) {
                total.slice(0, begin + first, begin + last).copy_(own_products(some.examples(first, last)));
              });
  });
  return total;
}

void Factors::add_inner(const Tensor& matrix, const Tensor& total) const {
  by_examples(*this, [&](std::int64_t begin, std::int64_t end, const Factors& part) {
    const Tensor seen = part.is_lookup() ? matrix.index_select(0, part.indices.reshape({-1}))
                                         : times(flat(part.left), matrix);
    total.slice(0, begin, end).add_(seen.mul_(flat(part.right)).view({end - begin, -1}).sum(1));
  });
}

void Factors::add_to(Tensor& matrix, const Tensor& weights) const {
  if (pull) {
    matrix.add_(pull(right, left * along_examples(weights, left)).t());
    return;
  }
  by_examples(*this, [&](std::int64_t begin, std::int64_t end, const Factors& part) {
    const Tensor w = along_examples(weights.slice(0, begin, end), part.right);
    if (part.is_lookup())
      matrix.index_add_(0, part.indices.reshape({-1}), flat(part.right * w));
    else
      multiply_transposed(flat(m < n ? part.left * w : part.left).unsqueeze(0),
                          flat(m < n ? part.right : part.right * w).unsqueeze(0), 1.0, 1.0,
                          matrix.unsqueeze(0));
  });
}

Tensor along_examples(const Tensor& values, const Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[0] = like.size(0);
  return values.view(shape);
}

/// In pieces, since float32 sums lose digits with their length.
Tensor squares_of_rows(const Tensor& rows) {
  constexpr std::int64_t kPiece = 4096;
  const std::int64_t pieces = rows.size(1) / kPiece;
  const Tensor whole = rows.slice(1, 0, pieces * kPiece).view({rows.size(0), pieces, kPiece});
  const Tensor rest = rows.slice(1, pieces * kPiece);
  return at::linalg_vector_norm(whole, 2, 2)
      .square_()
      .sum(1)
      .add_(at::linalg_vector_norm(rest, 2, 1).square_());
}

}  // namespace cdgrab::torch
