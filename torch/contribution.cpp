// SPDX-License-Identifier: Apache-2.0
#include "contribution.hpp"

#include <algorithm>
#include <utility>

#include "products.hpp"
#include "row_memory.hpp"

namespace cdgrab::torch {
namespace {

/// What stays in a core's cache from one pass to the next, and what stays in the one that cores share.
constexpr std::size_t kCacheBytes = std::size_t{2} << 20;
constexpr std::size_t kSharedCacheBytes = std::size_t{16} << 20;

}  // namespace

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
  forget_sum();
  if (alpha_ != other.alpha_ || !scale_.is_same(other.scale_)) {
    fold();
    other.fold();
  }
  if (!is_rows() && !other.is_rows() && !factors_.front().has_shape_of(other.factors_.front())) {
    form();
    other.form();
  }
  if (other.rows_.defined()) {
    formed_ = rows_.defined() || other.formed_;
    rows_ = rows_.defined() ? rows_ + other.rows_ : other.rows_;
  }
  for (Factors& f : other.factors_) factors_.push_back(std::move(f));
}

double Contribution::operations_of_forming() const {
  double total = 0.0;
  for (const Factors& f : factors_) total += f.operations_of_forming();
  return total;
}

/// At least one of the two has factors.
double Contribution::operations_of_cross_by_slices(const Contribution& other) const {
  const double forming = operations_of_forming() + (&other == this ? 0.0 : other.operations_of_forming());
  return forming + static_cast<double>(batch() * other.batch()) * static_cast<double>(entries());
}

bool Contribution::stays_in_cache(std::size_t bytes) { return bytes <= kCacheBytes; }

bool Contribution::prefers_rows() const { return stays_in_cache(row_bytes()) || saves_work_by_rows(); }

/// By factors: the Gram matrix, the product with one register and its update. By rows: forming them, and
/// two passes of a pair's products and update that only read, each worth about 16 from memory and 6 from the
/// shared cache (bench/observe).
bool Contribution::saves_work_by_rows() const {
  if (has_rows()) return true;
  const Factors& f = factors_.front();
  const double size = static_cast<double>(f.batch()) * static_cast<double>(f.m) * static_cast<double>(f.n);
  const double forming = operations_of_forming();
  const double slices = operations_of_cross_by_slices(*this);
  const double gram = is_one_use() ? std::min(f.operations_of_cross(f), slices) : slices;
  const double reading = row_bytes() <= kSharedCacheBytes ? 12.0 : 32.0;
  return forming + reading * size < gram + (f.is_lookup() ? 0.0 : 2.0 * forming);
}

std::size_t Contribution::factor_bytes() const {
  std::size_t total = 0;
  for (const Factors& f : factors_) total += f.bytes();
  return total;
}

std::int64_t Contribution::entries() const {
  return is_rows() ? rows_.size(1) : factors_.front().m * factors_.front().n;
}

at::TensorOptions Contribution::options() const {
  return is_rows() ? rows_.options() : factors_.front().options();
}

std::size_t Contribution::row_bytes() const {
  if (is_rows()) return rows_.nbytes();
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

void Contribution::form(bool with_sum) {
  if (is_rows()) return;
  if (with_sum && form_with_sum()) return;
  if (formed_ && alpha_ == 1.0 && !scale_.defined()) {
    for (const Factors& f : factors_) f.add_rows(rows_.view({batch(), f.m, f.n}), 0, 1.0, 1.0);
  } else {
    rows_ = rows();
    formed_ = true;
  }
  factors_.clear();
  alpha_ = 1.0;
  scale_ = Tensor();
}

void Contribution::form_in(const Tensor& memory, OwedSum* owed) {
  const Tensor rows = memory.slice(0, 0, batch());
  const Factors& f = factors_.front();
  const Tensor out = rows.view({batch(), f.m, f.n});
  const bool with_sum = owed != nullptr && is_plain_product() &&
                        multiply_with_sum(f.left, f.right, alpha_, out, owed->part(alpha_));
  if (!with_sum) fill(out, 0, f, alpha_);
  if (scale_.defined()) rows.mul_(scale_.to(rows.scalar_type()).unsqueeze(1));
  if (owed != nullptr && !with_sum)
    owed->part(alpha_).view({-1}).addmv_(rows.t(),
                                         scales().reciprocal_().mul_(alpha_).to(rows.scalar_type()));
  if (owed != nullptr) owed->take_in(batch());
  *this = of_rows(rows);
}

/// False, and nothing is done, where the sum would take a pass of its own.
bool Contribution::form_with_sum() {
  if (!is_plain_product()) return false;
  const Factors& f = factors();
  if (!comes_with_sum(f.left, f.right)) return false;
  const Tensor rows = empty_rows({batch(), f.m, f.n}, options());
  const Tensor sum = at::zeros({f.m, f.n}, options());
  multiply_with_sum(f.left, f.right, alpha_, rows, sum);
  *this = of_rows(rows.flatten(1));
  formed_ = true;
  know_sum(sum);
  return true;
}

/// (B, end - begin, n): what the uses add up to in these rows of the parameter, times alpha. The parameter is
/// taken for a matrix of the shape that `like` has, which is that of its own factors.
Tensor Contribution::slice(std::int64_t begin, std::int64_t end, const Factors& like, double alpha) const {
  if (is_rows() && alpha == 1.0) return rows_.view({batch(), like.m, like.n}).slice(1, begin, end);
  Tensor out = empty_rows({batch(), end - begin, like.n}, options());
  fill(out, begin, like, alpha);
  return out;
}

/// The same, from the parameter's row `begin` on, into (B, rows, n).
void Contribution::fill(const Tensor& out, std::int64_t begin, const Factors& like, double alpha) const {
  if (rows_.defined())
    out.copy_(rows_.view({batch(), like.m, like.n}).slice(1, begin, begin + out.size(1))).mul_(alpha);
  else if (factors_.front().is_lookup())
    out.zero_();
  double beta = rows_.defined() ? 1.0 : 0.0;
  for (const Factors& each : factors_) {
    each.add_rows(out, begin, beta, alpha);
    beta = 1.0;
  }
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

Contribution Contribution::expanded() const {
  constexpr std::int64_t kLittle = 8;
  Contribution out = *this;
  for (Factors& f : out.factors_)
    if (f.expand && !f.form && kLittle * f.positions <= f.m) f = f.examples(0, f.batch());
  return out;
}

/// For some of the parameter's rows at a time: formed, multiplied and dropped.
Tensor Contribution::cross_by_slices(const Contribution& other) const {
  if (&other == this) return products_by_slices({});
  const Factors& f = is_rows() ? other.factors_.front() : factors_.front();
  Tensor total = at::zeros({batch(), other.batch()}, options());
  const std::int64_t examples = batch() + other.batch();
  const Contribution all = expanded();
  const Contribution theirs = other.expanded();
  in_slices(f.m, examples * f.n * total.element_size(), [&](std::int64_t begin, std::int64_t end) {
    const Tensor mine = all.slice(begin, end, f, 1.0).flatten(1);
    total.addmm_(mine, theirs.slice(begin, end, f, 1.0).flatten(1).t());
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

bool Contribution::crosses_by_slices(const Contribution& other) const {
  return !is_one_use() || !other.is_one_use() ||
         factors_.front().operations_of_cross(other.factors_.front()) > operations_of_cross_by_slices(other);
}

Tensor Contribution::unscaled_cross(const Contribution& other) const {
  if (is_rows() && other.is_rows()) return at::mm(rows_, other.rows_.t());
  return crosses_by_slices(other) ? cross_by_slices(other) : factors_.front().cross(other.factors_.front());
}

/// What add_products() adds, without scales; the same way.
Tensor Contribution::products_by_slices(const std::vector<Tensor>& directions) const {
  const Factors& f = factors_.front();
  const auto columns = batch() + static_cast<std::int64_t>(directions.size());
  const Tensor products = at::zeros({batch(), columns}, options());
  const Tensor gram = products.slice(1, 0, batch());
  const Contribution all = expanded();
  in_slices(f.m, batch() * f.n * products.element_size(), [&](std::int64_t begin, std::int64_t end) {
    const Tensor some = all.slice(begin, end, f, 1.0).flatten(1);
    gram.addmm_(some, some.t());
    for (std::int64_t k = batch(); k < columns; ++k) {
      const Tensor& direction = directions[static_cast<std::size_t>(k - batch())];
      if (!direction.defined()) continue;
      products.select(1, k).addmv_(some, direction.view({f.m, f.n}).slice(0, begin, end).flatten());
    }
  });
  return products;
}

void Contribution::add_products(const std::vector<Tensor>& directions, const Tensor& total) const {
  if (!is_rows() && crosses_by_slices(*this)) {
    const Tensor products = products_by_slices(directions);
    const Tensor own = scales().to(products.scalar_type());
    products.slice(1, 0, batch()).mul_(own);
    total.add_(products.mul_(own.unsqueeze(1)));
    return;
  }
  total.slice(1, 0, batch()).add_(gram());
  for (std::size_t k = 0; k < directions.size(); ++k)
    if (directions[k].defined())
      total.select(1, batch() + static_cast<std::int64_t>(k)).add_(inner(directions[k]));
}

Tensor Contribution::cross(const Contribution& other) const {
  if (!is_rows() && !other.is_rows() && !factors_.front().has_shape_of(other.factors_.front()))
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
  if (is_one_use() && f.operations_of_cross(f) / static_cast<double>(batch()) <= slices)
    return f.squared_norms();
  Tensor total = at::zeros({batch()}, options());
  const Contribution all = expanded();
  in_slices(f.m, batch() * f.n * total.element_size(), [&](std::int64_t begin, std::int64_t end) {
    total.add_(squares_of_rows(all.slice(begin, end, f, 1.0).flatten(1)));
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
  if (!is_rows() && !total.defined()) total = at::zeros({batch()}, options());
  for (const Factors& f : factors_) {
    const Tensor matrix = direction.reshape({f.m, f.n});
    if (!torch::add_inner(f, matrix, total)) f.add_inner(matrix, total);
  }
  if (alpha_ != 1.0) total = total * alpha_;
  return scale_.defined() ? total * scale_.to(total.scalar_type()) : total;
}

void Contribution::know_sum(const Tensor& sum) {
  sum_ = sum;
  sum_version_ = sum._version();
}

void Contribution::forget_sum() {
  sum_ = Tensor();
  owed_ = nullptr;
}

Tensor Contribution::known_sum() const {
  if (owed_ != nullptr && owed_->is_known()) return owed_->value();
  return sum_.defined() && sum_._version() == sum_version_ ? sum_ : Tensor();
}

bool Contribution::add_by_sum(Tensor& to, const Tensor& weights) const {
  const Tensor sum = known_sum();
  if (!sum.defined() || !is_one_use() || scale_.defined()) return false;
  const Factors& f = factors_.front();
  Tensor matrix = to.view({f.m, f.n});
  if (torch::add_by_sum(f, alpha_ == 1.0 ? weights : weights * alpha_, sum, matrix)) return true;
  const Tensor host = weights.to(at::kCPU);
  const double common = std::get<0>(host.mode()).item<double>();
  const Tensor others = host.ne(common).nonzero().squeeze(1).to(weights.device());
  if (common == 0.0 || 3 * others.size(0) > 2 * batch()) return false;
  matrix.add_(sum, alpha_ * common);
  if (others.size(0) > 0) select(others).add_to(to, weights.index_select(0, others) - common);
  return true;
}

void Contribution::add_to(Tensor& to, const Tensor& weights) const {
  Tensor scaled = alpha_ == 1.0 ? weights : weights * alpha_;
  if (scale_.defined()) scaled = scaled * scale_.to(weights.scalar_type());
  if (owed_ != nullptr && !is_rows() && !owed_->is_known()) {
    Tensor matrix = to.view({factors_.front().m, factors_.front().n});
    if (owed_->add_to(matrix, scaled)) return;
    owed_->value();
  }
  if (add_by_sum(to, weights)) return;
  if (rows_.defined()) to.view({-1}).addmv_(rows_.t(), scaled);
  for (const Factors& f : factors_) {
    Tensor matrix = to.view({f.m, f.n});
    f.add_to(matrix, scaled);
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
    const Tensor flat = t.reshape({t.size(0), -1});
    return at::maximum(flat.amax(1), flat.amin(1).neg()).to(at::kDouble);  // abs() would be a copy
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

Contribution Contribution::narrowed(std::int64_t begin, std::int64_t end) const {
  Contribution out = *this;
  out.forget_sum();
  out.formed_ = false;
  if (rows_.defined()) out.rows_ = rows_.slice(0, begin, end);
  for (Factors& f : out.factors_) f = f.narrowed(begin, end);
  if (scale_.defined()) out.scale_ = scale_.slice(0, begin, end);
  return out;
}

Contribution Contribution::select(const Tensor& index) const {
  Contribution out = *this;
  out.forget_sum();
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
    out.factors_.push_back(Factors::cat(std::move(uses)));
  }
  return out;
}

Contribution Contribution::masked(const Tensor& keep) const {
  const auto clean = [&](const Tensor& t) {
    return t.defined() ? at::where(along_examples(keep, t), t, at::zeros({}, t.options())) : t;
  };
  Contribution out = *this;
  out.forget_sum();
  out.rows_ = clean(rows_);
  for (Factors& f : out.factors_) {
    f.left = clean(f.left);
    f.right = clean(f.right);
  }
  if (scale_.defined()) out.scale_ = clean(scale_);
  return out;
}

bool Contribution::is_rows_in_scales_of(const Contribution& other) const {
  return is_rows() && other.is_rows() && alpha_ == other.alpha_ && scale_.is_same(other.scale_);
}

Tensor side_by_side(std::int64_t batch, const std::vector<const Contribution*>& gradients,
                    const std::vector<std::int64_t>& numel, at::ScalarType dtype) {
  const Contribution* first = gradients.empty() ? nullptr : gradients.front();
  const auto is_like_first = [&](const Contribution* one) {
    return one != nullptr && first != nullptr && one->is_rows_in_scales_of(*first) &&
           one->formed().is_cpu() && one->formed().scalar_type() == dtype;
  };
  if (gradients.size() > 1 && std::all_of(gradients.begin(), gradients.end(), is_like_first)) {
    std::vector<Tensor> unscaled;
    for (const Contribution* each : gradients) unscaled.push_back(each->formed());
    return first->with_rows(at::cat(unscaled, 1)).rows();
  }
  std::vector<Tensor> rows;
  for (std::size_t k = 0; k < gradients.size(); ++k)
    rows.push_back(gradients[k] == nullptr ? at::zeros({batch, numel[k]}, dtype)
                                           : gradients[k]->rows().to(at::kCPU, dtype));
  return rows.size() == 1 ? rows[0].contiguous() : at::cat(rows, 1);
}

}  // namespace cdgrab::torch
