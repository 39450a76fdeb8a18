// SPDX-License-Identifier: Apache-2.0
#include "contribution.hpp"

#include <algorithm>
#include <utility>

#include "few_columns.hpp"

namespace cdgrab::torch {
namespace {

/// What an intermediate result may take: rows in slices, a factor expanded for some examples.
constexpr std::int64_t kScratchBytes = std::int64_t{32} << 20;

/// What stays in a core's cache from one pass to the next.
constexpr std::size_t kCacheBytes = std::size_t{512} << 10;

std::size_t bytes_of(const Tensor& tensor) { return tensor.defined() ? tensor.nbytes() : 0; }

/// (B, T, n) -> (B*T, n).
Tensor flat(const Tensor& factor) {
  return factor.reshape({factor.size(0) * factor.size(1), factor.size(2)});
}

/// (B) against a tensor with the examples first.
Tensor along_examples(const Tensor& values, const Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[0] = like.size(0);
  return values.view(shape);
}

/// Calls visit(begin, end) so that `bytes_each` of them stay within the scratch.
template <class Visit>
void in_slices(std::int64_t count, std::int64_t bytes_each, Visit visit) {
  const std::int64_t step = std::max<std::int64_t>(1, kScratchBytes / std::max<std::int64_t>(bytes_each, 1));
  for (std::int64_t begin = 0; begin < count; begin += step) visit(begin, std::min(begin + step, count));
}

/// Calls visit(begin, end, factors of these examples): all at once unless expanding them takes much.
template <class Visit>
void by_examples(const Factors& f, Visit visit) {
  if (!f.expand) return visit(0, f.batch(), f);
  in_slices(f.batch(), f.positions * f.n * f.right.element_size(),
            [&](std::int64_t begin, std::int64_t end) { visit(begin, end, f.examples(begin, end)); });
}

/// rows = beta * rows + alpha * left^T right, for the parameter's rows [first, first + rows.size(1)); rows is
/// (B, count, n). A beta of 0 means that they hold nothing yet, or zeros for a lookup.
void add_rows(const Tensor& rows, const Factors& f, std::int64_t first, double beta, double alpha) {
  const std::int64_t count = rows.size(1);
  if (f.form && count == f.m && beta == 0.0 && rows.scalar_type() == at::kFloat)
    return f.form(f.left, f.right, alpha, rows);
  if (!f.is_lookup()) {
    by_examples(f, [&](std::int64_t begin, std::int64_t end, const Factors& part) {
      const Tensor to = rows.slice(0, begin, end);
      const Tensor left = part.left.slice(2, first, first + count);
      const bool fresh = beta == 0.0 && f.positions > 1;
      if (fresh && to.is_contiguous() && few_columns_of_rows(left, part.right, alpha, to)) return;
      to.baddbmm_(left.transpose(1, 2), part.right, beta, alpha);
    });
    return;
  }
  const Tensor inside = f.indices.ge(first).logical_and_(f.indices.lt(first + count));
  const Tensor start = at::arange(f.batch(), f.indices.options()).mul_(count).unsqueeze(1);
  const Tensor target = at::where(inside, f.indices - first, at::zeros({}, f.indices.options())) + start;
  const Tensor right = count == f.m ? f.right : f.right * inside.unsqueeze(-1);
  rows.view({f.batch() * count, f.n}).index_add_(0, target.reshape({-1}), flat(right), alpha);
}

bool of_one_shape(const Factors& a, const Factors& b) { return a.m == b.m && a.n == b.n; }

/// Of cross_by_factors(): multiplications.
double operations_by_factors(const Factors& a, const Factors& b) {
  const double pairs =
      static_cast<double>(a.batch() * a.positions) * static_cast<double>(b.batch() * b.positions);
  return pairs * static_cast<double>(a.is_lookup() || b.is_lookup() ? a.n : a.m + a.n);
}

/// Products of the left factors' rows, one for every position of `a` and of `b`. Those of unit vectors are
/// looked up.
Tensor left_products(const Factors& a, const Factors& b) {
  if (!a.is_lookup() && !b.is_lookup()) return at::mm(flat(a.left), flat(b.left).t());
  if (!a.is_lookup()) return flat(a.left).index_select(1, b.indices.reshape({-1}));
  if (!b.is_lookup()) return flat(b.left).t().index_select(0, a.indices.reshape({-1}));
  return b.indices.reshape({1, -1}).eq(a.indices.reshape({-1, 1}));
}

/// (B, B'): (left left'^T) o (right right'^T), added up over the positions; both are expanded.
Tensor pair_products(const Factors& a, const Factors& b) {
  Tensor pairs = at::mm(flat(a.right), flat(b.right).t());
  pairs.mul_(left_products(a, b));
  if (a.positions == 1 && b.positions == 1) return pairs;
  return pairs.view({a.batch(), a.positions, b.batch(), b.positions}).sum(at::IntArrayRef{1, 3});
}

/// The same of any, with what is expanded and what is between in slices.
Tensor cross_by_factors(const Factors& a, const Factors& b) {
  Tensor total = at::empty({a.batch(), b.batch()}, a.options());
  by_examples(a, [&](std::int64_t begin, std::int64_t end, const Factors& mine) {
    const auto fill = [&](std::int64_t from, std::int64_t to, const Factors& theirs) {
      const std::int64_t pairs_each = a.positions * theirs.batch() * b.positions;
      in_slices(end - begin, pairs_each * total.element_size(), [&](std::int64_t first, std::int64_t last) {
        total.slice(0, begin + first, begin + last)
            .slice(1, from, to)
            .copy_(pair_products(mine.examples(first, last), theirs));
      });
    };
    if (&a == &b && mine.batch() == a.batch())
      fill(0, b.batch(), mine);  // expanded once
    else
      by_examples(b, fill);
  });
  return total;
}

/// (B): of the rows (B, d), without a copy of them. In pieces, since float32 sums lose digits with their
/// length.
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

/// The same of any, in slices.
Tensor squares_by_factors(const Factors& f) {
  Tensor total = at::empty({f.batch()}, f.options());
  by_examples(f, [&](std::int64_t begin, std::int64_t end, const Factors& some) {
    in_slices(end - begin, f.positions * f.positions * total.element_size(),
              [&](std::int64_t first, std::int64_t last) {
                total.slice(0, begin + first, begin + last).copy_(own_products(some.examples(first, last)));
              });
  });
  return total;
}

/// (B, T, ..) with zeros after T, up to `positions`.
Tensor padded(const Tensor& factor, std::int64_t positions) {
  if (!factor.defined() || factor.size(1) == positions) return factor;
  std::vector<std::int64_t> shape = factor.sizes().vec();
  shape[1] = positions - factor.size(1);
  return at::cat({factor, at::zeros(shape, factor.options())}, 1);
}

/// The examples of all, which are of one kind.
Factors cat_uses(std::vector<Factors> uses) {
  std::int64_t positions = 0;
  for (Factors& f : uses) {
    if (f.expand) f = f.examples(0, f.batch());
    positions = std::max(positions, f.positions);
  }
  std::vector<Tensor> lefts;
  std::vector<Tensor> rights;
  for (const Factors& f : uses) {
    lefts.push_back(padded(f.is_lookup() ? f.indices : f.left, positions));
    rights.push_back(padded(f.right, positions));
  }
  const Tensor left = at::cat(lefts);
  const Tensor right = at::cat(rights);
  return uses.front().is_lookup() ? Factors::of_lookup(left, right, uses.front().m)
                                  : Factors::of_matrix(left, right);
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

Factors Factors::examples(std::int64_t begin, std::int64_t end) const {
  Factors part = *this;
  if (left.defined()) part.left = left.slice(0, begin, end);
  if (indices.defined()) part.indices = indices.slice(0, begin, end);
  part.right = right.slice(0, begin, end);
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

// ---------------------------------------------------------------------------------------------------------

Contribution Contribution::of_rows(Tensor rows) {
  Contribution contribution;
  contribution.rows_ = std::move(rows);
  return contribution;
}

Contribution Contribution::of_factors(Factors factors) {
  Contribution contribution;
  contribution.factors_.push_back(std::move(factors));
  return contribution;
}

Contribution Contribution::with_rows(Tensor rows) const {
  Contribution contribution = of_rows(std::move(rows));
  contribution.alpha_ = alpha_;
  contribution.scale_ = scale_;
  return contribution;
}

std::int64_t Contribution::batch() const { return is_rows() ? rows_.size(0) : factors_.front().batch(); }

void Contribution::fold() {
  if (alpha_ == 1.0 && !scale_.defined()) return;
  const Tensor all = scales();
  if (rows_.defined()) rows_ = rows_ * all.to(rows_.scalar_type()).unsqueeze(1);
  for (Factors& f : factors_) {
    Tensor& factor = f.is_lookup() ? f.right : f.left;
    factor = factor * along_examples(all.to(factor.scalar_type()), factor);
  }
  alpha_ = 1.0;
  scale_ = Tensor();
}

void Contribution::add(Contribution other) {
  sum_ = Tensor();
  if (alpha_ != other.alpha_ || !scale_.is_same(other.scale_)) {
    fold();
    other.fold();
  }
  if (!is_rows() && !other.is_rows() && !of_one_shape(factors_.front(), other.factors_.front())) {
    form();
    other.form();
  }
  if (other.rows_.defined()) {
    formed_ = rows_.defined() || other.formed_;
    rows_ = rows_.defined() ? rows_ + other.rows_ : other.rows_;
  }
  for (Factors& f : other.factors_) factors_.push_back(std::move(f));
}

/// Multiplications; a unit vector's are none.
double Contribution::operations_of_forming() const {
  double total = 0.0;
  for (const Factors& f : factors_)
    total += static_cast<double>(f.batch() * f.positions) * static_cast<double>(f.is_lookup() ? 1 : f.m) *
             static_cast<double>(f.n);
  return total;
}

/// At least one of the two has factors.
double Contribution::operations_of_cross_by_slices(const Contribution& other) const {
  const double forming = operations_of_forming() + (&other == this ? 0.0 : other.operations_of_forming());
  return forming + static_cast<double>(batch() * other.batch()) * static_cast<double>(entries());
}

bool Contribution::prefers_rows() const { return row_bytes() <= kCacheBytes || saves_work_by_rows(); }

/// By factors: the Gram matrix, the product with one register and its update. By rows: forming them, and
/// two passes of a pair's products and update that only read memory, each worth about 16 (bench/observe).
bool Contribution::saves_work_by_rows() const {
  if (has_rows()) return true;
  const Factors& f = factors_.front();
  const double size = static_cast<double>(f.batch()) * static_cast<double>(f.m) * static_cast<double>(f.n);
  const double forming = operations_of_forming();
  const double slices = operations_of_cross_by_slices(*this);
  const double gram = is_one_use() ? std::min(operations_by_factors(f, f), slices) : slices;
  return forming + 32.0 * size < gram + (f.is_lookup() ? 0.0 : 2.0 * forming);
}

std::size_t Contribution::factor_bytes() const {
  std::size_t total = 0;
  for (const Factors& f : factors_) total += bytes_of(f.left) + bytes_of(f.indices) + bytes_of(f.right);
  return total;
}

std::int64_t Contribution::entries() const {
  return is_rows() ? rows_.size(1) : factors_.front().m * factors_.front().n;
}

at::TensorOptions Contribution::options() const {
  return is_rows() ? rows_.options() : factors_.front().options();
}

std::size_t Contribution::row_bytes() const {
  if (is_rows()) return bytes_of(rows_);
  return static_cast<std::size_t>(batch() * entries()) * options().dtype().itemsize();
}

void Contribution::to(at::ScalarType dtype) {
  if (rows_.defined()) rows_ = rows_.to(dtype);
  for (Factors& f : factors_) {
    if (f.left.defined()) f.left = f.left.to(dtype);
    if (f.expand && f.right.scalar_type() != dtype)
      f.expand = [expand = std::move(f.expand), dtype](const Tensor& right) {
        return expand(right).to(dtype);
      };
    else
      f.right = f.right.to(dtype);
  }
}

void Contribution::merge() {
  const auto plain = [](const Factors& f) { return !f.is_lookup() && !f.expand; };
  if (std::count_if(factors_.begin(), factors_.end(), plain) < 2) return;
  std::vector<Tensor> lefts;
  std::vector<Tensor> rights;
  for (const Factors& f : factors_) {
    if (!plain(f)) continue;
    lefts.push_back(f.left);
    rights.push_back(f.right);
  }
  std::erase_if(factors_, plain);
  factors_.insert(factors_.begin(), Factors::of_matrix(at::cat(lefts, 1), at::cat(rights, 1)));
}

void Contribution::form() {
  if (is_rows()) return;
  if (formed_ && alpha_ == 1.0 && !scale_.defined()) {
    for (const Factors& f : factors_) add_rows(rows_.view({batch(), f.m, f.n}), f, 0, 1.0, 1.0);
  } else {
    rows_ = rows();
    formed_ = true;
  }
  factors_.clear();
  alpha_ = 1.0;
  scale_ = Tensor();
}

/// (B, end - begin, n): what the uses add up to in these rows of the parameter, times alpha. The parameter is
/// taken for a matrix of the shape that `like` has, which is that of its own factors.
Tensor Contribution::slice(std::int64_t begin, std::int64_t end, const Factors& like, double alpha) const {
  Tensor out;
  if (rows_.defined()) {
    out = rows_.view({batch(), like.m, like.n}).slice(1, begin, end);
    if (alpha != 1.0 || !is_rows()) out = out * alpha;
  } else {
    const std::vector<std::int64_t> shape = {batch(), end - begin, like.n};
    out = factors_.front().is_lookup() ? at::zeros(shape, options()) : at::empty(shape, options());
  }
  double beta = rows_.defined() ? 1.0 : 0.0;
  for (const Factors& each : factors_) {
    add_rows(out, each, begin, beta, alpha);
    beta = 1.0;
  }
  return out;
}

Tensor Contribution::rows() const {
  Tensor rows = rows_;
  double alpha = alpha_;
  if (!is_rows()) {
    rows = slice(0, factors_.front().m, factors_.front(), alpha).view({batch(), -1});
    alpha = 1.0;
  }
  if (alpha != 1.0) rows = rows * alpha;
  return scale_.defined() ? rows * scale_.to(rows.scalar_type()).unsqueeze(1) : rows;
}

/// For some of the parameter's rows at a time: formed, multiplied and dropped.
Tensor Contribution::cross_by_slices(const Contribution& other) const {
  const Factors& f = is_rows() ? other.factors_.front() : factors_.front();
  const bool same = &other == this;
  Tensor total = at::zeros({batch(), other.batch()}, options());
  const std::int64_t examples = batch() + (same ? 0 : other.batch());
  in_slices(f.m, examples * f.n * total.element_size(), [&](std::int64_t begin, std::int64_t end) {
    const Tensor mine = slice(begin, end, f, 1.0).flatten(1);
    const Tensor theirs = same ? mine : other.slice(begin, end, f, 1.0).flatten(1);
    total.addmm_(mine, theirs.t());
  });
  return total;
}

/// For some of the other's examples at a time. The two take the parameter for matrices of different shapes.
Tensor Contribution::cross_by_rows_of(const Contribution& other) const {
  const auto bytes_each = static_cast<std::int64_t>(other.row_bytes()) / other.batch();
  const auto numbers = other.options().dtype(at::kLong);
  std::vector<Tensor> columns;
  in_slices(other.batch(), bytes_each, [&](std::int64_t begin, std::int64_t end) {
    columns.push_back(cross(of_rows(other.select(at::arange(begin, end, numbers)).rows())));
  });
  return at::cat(columns, 1);
}

Tensor Contribution::unscaled_cross(const Contribution& other) const {
  if (is_rows() && other.is_rows()) return at::mm(rows_, other.rows_.t());
  if (is_one_use() && other.is_one_use()) {
    const Factors& a = factors_.front();
    const Factors& b = other.factors_.front();
    if (operations_by_factors(a, b) <= operations_of_cross_by_slices(other)) return cross_by_factors(a, b);
  }
  return cross_by_slices(other);
}

Tensor Contribution::cross(const Contribution& other) const {
  if (!is_rows() && !other.is_rows() && !of_one_shape(factors_.front(), other.factors_.front()))
    return cross_by_rows_of(other);
  Tensor products = unscaled_cross(other);
  const double alpha = alpha_ * other.alpha_;
  if (alpha != 1.0) products = products.mul_(alpha);
  const auto type = products.scalar_type();
  if (other.scale_.defined()) products = products * other.scale_.to(type).unsqueeze(0);
  return scale_.defined() ? products * scale_.to(type).unsqueeze(1) : products;
}

Tensor Contribution::unscaled_squared_norms() const {
  if (is_rows()) return squares_of_rows(rows_);
  const Factors& f = factors_.front();
  const double slices =
      operations_of_forming() + static_cast<double>(batch()) * static_cast<double>(entries());
  if (is_one_use() && operations_by_factors(f, f) / static_cast<double>(batch()) <= slices)
    return squares_by_factors(f);
  Tensor total = at::zeros({batch()}, options());
  in_slices(f.m, batch() * f.n * total.element_size(), [&](std::int64_t begin, std::int64_t end) {
    total.add_(squares_of_rows(slice(begin, end, f, 1.0).flatten(1)));
  });
  return total;
}

Tensor Contribution::squared_norms() const {
  Tensor squares = unscaled_squared_norms();
  if (alpha_ != 1.0) squares = squares.mul_(alpha_ * alpha_);
  return scale_.defined() ? squares * scale_.to(squares.scalar_type()).square() : squares;
}

Tensor Contribution::inner(const Tensor& direction) const {
  Tensor total;
  if (rows_.defined()) total = at::mv(rows_, direction.reshape({-1}));
  for (const Factors& f : factors_) {
    const Tensor matrix = direction.reshape({f.m, f.n});
    if (!total.defined()) total = at::zeros({f.batch()}, options());
    by_examples(f, [&](std::int64_t begin, std::int64_t end, const Factors& part) {
      // By the right factor: a BLAS reads a matrix that it transposes sooner than one that it does not.
      const Tensor seen = part.is_lookup()
                              ? matrix.index_select(0, part.indices.reshape({-1})).mul_(flat(part.right))
                              : at::mm(flat(part.right), matrix.t()).mul_(flat(part.left));
      total.slice(0, begin, end).add_(seen.view({end - begin, -1}).sum(1));
    });
  }
  if (alpha_ != 1.0) total = total * alpha_;
  return scale_.defined() ? total * scale_.to(total.scalar_type()) : total;
}

void Contribution::know_sum(const Tensor& sum) {
  sum_ = sum;
  sum_version_ = sum._version();
}

bool Contribution::add_by_sum(Tensor& to, const Tensor& weights) const {
  if (!sum_.defined() || sum_._version() != sum_version_ || !is_one_use() || scale_.defined()) return false;
  const Tensor host = weights.to(at::kCPU);
  const double common = std::get<0>(host.mode()).item<double>();
  const Tensor others = host.ne(common).nonzero().squeeze(1).to(weights.device());
  if (common == 0.0 || 3 * others.size(0) > 2 * batch()) return false;
  const Factors& f = factors_.front();
  to.view({f.m, f.n}).add_(sum_, alpha_ * common);
  if (others.size(0) > 0) select(others).add_to(to, weights.index_select(0, others) - common);
  return true;
}

void Contribution::add_to(Tensor& to, const Tensor& weights) const {
  if (add_by_sum(to, weights)) return;
  Tensor scaled = alpha_ == 1.0 ? weights : weights * alpha_;
  if (scale_.defined()) scaled = scaled * scale_.to(weights.scalar_type());
  if (rows_.defined()) to.view({-1}).addmv_(rows_.t(), scaled);
  for (const Factors& f : factors_) {
    Tensor matrix = to.view({f.m, f.n});
    by_examples(f, [&](std::int64_t begin, std::int64_t end, const Factors& part) {
      const Tensor w = along_examples(scaled.slice(0, begin, end), part.right);
      if (part.is_lookup())
        matrix.index_add_(0, part.indices.reshape({-1}), flat(part.right * w));
      else if (f.m < f.n)
        matrix.addmm_(flat(part.left * w).t(), flat(part.right));
      else
        matrix.addmm_(flat(part.left).t(), flat(part.right * w));
    });
  }
}

Tensor Contribution::scales() const {
  const at::TensorOptions wide = options().dtype(at::kDouble);
  if (!scale_.defined()) return at::full({batch()}, alpha_, wide);
  return scale_.to(wide).mul(alpha_);
}

void Contribution::fold_scales(const Tensor& more, bool into_left) {
  const Tensor all = scales() * more.to(scales().device());
  alpha_ = 1.0;
  scale_ = Tensor();
  if (all.eq(1.0).all().item<bool>()) return;
  for (Factors& f : factors_) {
    Tensor& factor = into_left && !f.is_lookup() ? f.left : f.right;
    factor = factor * along_examples(all.to(factor.scalar_type()), factor);
  }
}

Tensor Contribution::magnitude() const {
  const auto largest = [](const Tensor& t) {
    return t.reshape({t.size(0), -1}).abs().amax(1).to(at::kDouble);
  };
  Tensor total;
  if (rows_.defined()) total = largest(rows_);
  for (const Factors& f : factors_) {
    Tensor one = largest(f.right).mul_(static_cast<double>(f.positions));
    if (!f.is_lookup()) one.mul_(largest(f.left));
    total = total.defined() ? total + one : one;
  }
  return total.mul_(scales().abs());
}

Contribution Contribution::select(const Tensor& index) const {
  Contribution out = *this;
  out.sum_ = Tensor();
  if (rows_.defined()) out.rows_ = rows_.index_select(0, index);
  for (Factors& f : out.factors_) f = f.select(index);
  if (scale_.defined()) out.scale_ = scale_.index_select(0, index);
  return out;
}

bool Contribution::alike(const Contribution& other) const {
  if (rows_.defined() != other.rows_.defined() || factors_.size() != other.factors_.size()) return false;
  for (std::size_t k = 0; k < factors_.size(); ++k) {
    const Factors& a = factors_[k];
    const Factors& b = other.factors_[k];
    if (a.is_lookup() != b.is_lookup() || a.m != b.m || a.n != b.n) return false;
  }
  return true;
}

Contribution Contribution::cat(const std::vector<Contribution>& all) {
  if (all.size() == 1) return all.front();
  std::vector<Tensor> scales;
  for (const Contribution& each : all) scales.push_back(each.scales());
  Contribution out;
  out.scale_ = at::cat(scales);
  if (out.scale_.eq(1.0).all().item<bool>()) out.scale_ = Tensor();
  if (all.front().rows_.defined()) {
    std::vector<Tensor> rows;
    for (const Contribution& each : all) rows.push_back(each.rows_);
    out.rows_ = at::cat(rows);
  }
  for (std::size_t k = 0; k < all.front().factors_.size(); ++k) {
    std::vector<Factors> uses;
    for (const Contribution& each : all) uses.push_back(each.factors_[k]);
    out.factors_.push_back(cat_uses(std::move(uses)));
  }
  return out;
}

Contribution Contribution::masked(const Tensor& keep) const {
  const auto clean = [&](const Tensor& t) {
    return t.defined() ? at::where(along_examples(keep, t), t, at::zeros({}, t.options())) : t;
  };
  Contribution out = *this;
  out.sum_ = Tensor();
  out.rows_ = clean(rows_);
  for (Factors& f : out.factors_) {
    f.left = clean(f.left);
    f.right = clean(f.right);
  }
  if (scale_.defined()) out.scale_ = clean(scale_);
  return out;
}

Tensor side_by_side(std::int64_t batch, const std::vector<const Contribution*>& gradients,
                    const std::vector<std::int64_t>& numel, at::ScalarType dtype) {
  std::vector<Tensor> rows;
  for (std::size_t k = 0; k < gradients.size(); ++k)
    rows.push_back(gradients[k] == nullptr ? at::zeros({batch, numel[k]}, dtype)
                                           : gradients[k]->rows().to(at::kCPU, dtype));
  return rows.size() == 1 ? rows[0].contiguous() : at::cat(rows, 1);
}

}  // namespace cdgrab::torch
