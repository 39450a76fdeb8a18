// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cdgrab/dense_geometry.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/state.hpp"
#include "kernels/kernels.hpp"

namespace cdgrab {
namespace {

/// Coordinates of a tile that stays in the first cache while several kernels work on it.
constexpr std::size_t kTile = 1024;

/// Where <v_k, accumulator> stands in a pass's output, and where row k of the Gram matrix begins.
constexpr std::size_t inner_at(std::size_t k) { return k * (k + 1) / 2 + k; }
constexpr std::size_t row_at(std::size_t k) { return k * (k + 1) / 2; }

}  // namespace

template <class T>
DenseGeometry<T>::DenseGeometry(std::size_t dim, Loops loops)
    : dim_(dim), kernels_(loops == Loops::kPlain ? kernels::reference<T>() : kernels::best<T>()) {
  static_assert(kGroup == kernels::kMaxGroup);
}

template <class T>
void DenseGeometry<T>::set_block(const T* rows, std::size_t count) {
  rows_ = rows;
  count_ = count;
}

/// Measured (bench/sorter): at the root, two differences are kept in cache for the catching up, or four
/// rows are read again; further down a vector goes alone, since it and the accumulator it has just met
/// are still in cache when it moves on.
template <class T>
std::size_t DenseGeometry<T>::group_size(bool differences, bool root) const {
  if (!root) return 1;
  return differences ? 2 : kGroup;
}

template <class T>
void DenseGeometry<T>::declare(std::vector<std::string> names) {
  names_ = std::move(names);
  registers_.assign(names_.size(), {});
}

template <class T>
T* DenseGeometry<T>::storage(Register target) {
  auto& values = registers_[target];
  if (values.empty()) values.resize(dim_);
  return values.data();
}

template <class T>
const T* DenseGeometry<T>::pointer(const Operand& operand) {
  return operand.kind == Operand::Kind::kRow ? rows_ + operand.index * dim_ : storage(operand.index);
}

template <class T>
void DenseGeometry<T>::form(std::span<const Vector> group) {
  if (pending_is_old_) flush();
  last_ = group_;
  pending_is_old_ = !pending_.empty();
  group_ = Group{};
  group_.size = group.size();
  bool plain = true;
  bool common = true;
  bool all_differ = true;
  for (std::size_t k = 0; k < group.size(); ++k) {
    const Vector& v = group[k];
    group_.first[k] = pointer(v.first);
    group_.second[k] = v.has_second ? pointer(v.second) : nullptr;
    group_.first_scale[k] = static_cast<T>(v.first.scale);
    group_.second_scale[k] = static_cast<T>(v.second.scale);
    plain = plain && v.first.scale == 1.0 && (!v.has_second || v.second.scale == 1.0);
    common = common && group_.second[k] == group_.second[0] &&
             (!v.has_second || v.second.kind == Operand::Kind::kRegister) &&
             v.first.kind == Operand::Kind::kRow;
    all_differ = all_differ && v.has_second;
  }
  group_.differences = !common;
  if (common) group_.centre = group_.second[0];
  if (!plain || !(common || all_differ)) keep_now();
}

/// Forms the vectors of the group into the kept rows, which the group before may still need.
template <class T>
void DenseGeometry<T>::keep_now() {
  flush();
  for (std::size_t k = 0; k < group_.size; ++k) {
    kept_[k].resize(dim_);
    kernels_.blend(kept_[k].data(), group_.first_scale[k], group_.first[k], -group_.second_scale[k],
                   group_.second[k], dim_);
  }
  keep_formed();
}

template <class T>
void DenseGeometry<T>::keep_formed() {
  for (std::size_t k = 0; k < group_.size; ++k) {
    group_.first[k] = kept_[k].data();
    group_.second[k] = nullptr;
  }
  group_.kept = true;
  group_.differences = false;
  group_.centre = nullptr;
}

template <class T>
const typename DenseGeometry<T>::Pending* DenseGeometry<T>::pending_on(Register target) const {
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [target](const Pending& p) { return p.target == target; });
  return found == pending_.end() ? nullptr : &*found;
}

template <class T>
void DenseGeometry<T>::products(std::span<const Register> against, Wanted wanted, Products& out) {
  const std::size_t size = group_.size;
  out.inner.resize(size);
  if (one_step_down(against, wanted)) {
    const Pending above = pending_[0];
    pending_.clear();
    const bool centred = group_.second[0] != nullptr;
    if (centred) kept_[0].resize(dim_);
    out.inner[0] =
        kernels_.add_and_dot(storage(above.target), above.weights[0], group_.first[0], group_.second[0],
                             centred ? kept_[0].data() : nullptr, storage(against[0]), dim_);
    if (centred) keep_formed();
    return;
  }
  const bool same = std::all_of(against.begin(), against.end(), [&](Register r) { return r == against[0]; });
  if (!same || group_.kept) return separate_products(against, wanted, out);

  double raw[kernels::kMaxProducts];
  one_pass(against[0], raw);
  for (std::size_t k = 0; k < size; ++k) out.inner[k] = raw[inner_at(k)];
  if (wanted.gram) {
    out.gram.resize(size * (size - 1) / 2);
    for (std::size_t k = 1; k < size; ++k)
      std::copy_n(raw + row_at(k), k, out.gram.begin() + static_cast<std::ptrdiff_t>(k * (k - 1) / 2));
  }
  if (wanted.norms) {
    out.norms.resize(size);
    for (std::size_t k = 0; k < size; ++k) {
      const T* v = group_.first[k];
      out.norms[k] = kernels_.dot(v, group_.second[k], v, dim_);
      if (group_.centre != nullptr) out.norms[k] -= kernels_.dot(v, group_.centre, group_.centre, dim_);
    }
  }
}

/// A vector that goes down a tree: catch up at the node it comes from, take the product at the next.
template <class T>
bool DenseGeometry<T>::one_step_down(std::span<const Register> against, Wanted wanted) const {
  return group_.size == 1 && !group_.differences && pending_.size() == 1 && !pending_is_old_ &&
         pending_[0].target != against[0] && !wanted.norms;
}

template <class T>
void DenseGeometry<T>::one_pass(Register against, double* raw) {
  if (group_.differences) return difference_pass(against, raw);
  return centred_pass(against, raw);
}

template <class T>
void DenseGeometry<T>::difference_pass(Register against, double* raw) {
  const bool fits = pending_is_old_ && pending_.size() == 1 && pending_[0].target == against && last_.kept &&
                    last_.size == group_.size;
  if (!fits) flush();
  std::array<T*, kGroup> kept{};
  for (std::size_t k = 0; k < group_.size; ++k) {
    kept_[k].resize(dim_);
    kept[k] = kept_[k].data();
  }
  kernels_.difference_pass({storage(against), kept.data(), fits ? pending_[0].weights.data() : nullptr,
                            group_.first.data(), group_.second.data(), dim_},
                           group_.size, raw);
  keep_formed();
  if (fits) pending_.clear();
  pending_is_old_ = false;
}

template <class T>
void DenseGeometry<T>::centred_pass(Register against, double* raw) {
  const Pending* signs = nullptr;
  const Pending* total = nullptr;
  if (pending_is_old_ && !last_.kept && last_.centre == group_.centre && last_.size == group_.size) {
    for (const Pending& p : pending_) {
      const auto end = p.weights.begin() + static_cast<std::ptrdiff_t>(group_.size);
      const bool ones = std::all_of(p.weights.begin(), end, [](T weight) { return weight == T{1}; });
      if (p.target == against) signs = &p;
      if (p.target != against && ones) total = &p;
    }
  }
  if (signs == nullptr || (group_.centre == nullptr) != (total == nullptr)) {
    flush();
    kernels_.centred_pass(
        {storage(against), nullptr, group_.centre, nullptr, nullptr, group_.first.data(), dim_}, group_.size,
        raw);
    return;
  }
  const Pending fused_signs = *signs;
  const Register fused_total = total == nullptr ? against : total->target;
  std::erase_if(pending_, [&](const Pending& p) { return p.target == against || p.target == fused_total; });
  flush();
  kernels_.centred_pass({storage(against), total == nullptr ? nullptr : storage(fused_total), group_.centre,
                         last_.first.data(), fused_signs.weights.data(), group_.first.data(), dim_},
                        group_.size, raw);
}

/// Each vector against a register of its own, or vectors that are formed already: tile by tile, first
/// whatever was put off, then the products, so that each coordinate is read once for both.
template <class T>
void DenseGeometry<T>::separate_products(std::span<const Register> against, Wanted wanted, Products& out) {
  const std::size_t size = group_.size;
  if (group_.differences || (group_.centre != nullptr && (wanted.gram || wanted.norms))) keep_now();
  std::array<T*, kGroup> accumulators{};
  for (std::size_t k = 0; k < size; ++k) accumulators[k] = storage(against[k]);
  std::fill(out.inner.begin(), out.inner.end(), 0.0);
  for (std::size_t begin = 0; begin < dim_; begin += kTile) {
    const std::size_t end = std::min(dim_, begin + kTile);
    for (const Pending& pending : pending_) carry_out(pending, begin, end);
    for (std::size_t k = 0; k < size; ++k)
      out.inner[k] += kernels_.dot(group_.first[k] + begin,
                                   group_.second[k] == nullptr ? nullptr : group_.second[k] + begin,
                                   accumulators[k] + begin, end - begin);
  }
  pending_.clear();
  pending_is_old_ = false;
  if (wanted.gram) {
    out.gram.clear();
    for (std::size_t k = 1; k < size; ++k)
      for (std::size_t j = 0; j < k; ++j)
        out.gram.push_back(kernels_.dot(group_.first[k], nullptr, group_.first[j], dim_));
  }
  if (wanted.norms) {
    out.norms.clear();
    for (std::size_t k = 0; k < size; ++k)
      out.norms.push_back(kernels_.dot(group_.first[k], nullptr, group_.first[k], dim_));
  }
}

template <class T>
void DenseGeometry<T>::combine(Register target, std::span<const Weighted> weights) {
  if (pending_is_old_ || pending_on(target) != nullptr) flush();
  Pending& pending = pending_.emplace_back();
  pending.target = target;
  for (const Weighted& w : weights) pending.weights[w.index] = static_cast<T>(w.weight);
}

/// Tile by tile, so that the vectors are read once for all the registers they go to.
template <class T>
void DenseGeometry<T>::flush() {
  for (std::size_t begin = 0; begin < dim_ && !pending_.empty(); begin += kTile)
    for (const Pending& pending : pending_) carry_out(pending, begin, std::min(dim_, begin + kTile));
  pending_.clear();
  pending_is_old_ = false;
}

template <class T>
void DenseGeometry<T>::carry_out(const Pending& pending, std::size_t begin, std::size_t end) {
  const Group& group = pending_group();
  std::array<const T*, kGroup> first{};
  std::array<const T*, kGroup> second{};
  std::array<T, kGroup> weights{};
  std::size_t count = 0;
  for (std::size_t k = 0; k < group.size; ++k) {
    if (pending.weights[k] == T{0}) continue;
    first[count] = group.first[k] + begin;
    second[count] = group.second[k] == nullptr ? nullptr : group.second[k] + begin;
    weights[count++] = pending.weights[k];
  }
  if (count == 0) return;
  kernels_.combine(
      {storage(pending.target) + begin, weights.data(), first.data(), second.data(), count, end - begin});
}

template <class T>
void DenseGeometry<T>::blend(Register target, double scale, const Operand& operand) {
  flush();
  const T* source = pointer(operand);
  T* values = storage(target);
  if (scale == 0.0) {  // not 0 * old: what is overwritten does not matter, whatever it holds
    kernels_.blend(values, static_cast<T>(operand.scale), source, T{0}, nullptr, dim_);
  } else {
    kernels_.blend(values, static_cast<T>(scale), values, static_cast<T>(operand.scale), source, dim_);
  }
}

template <class T>
void DenseGeometry<T>::clear(Register target) {
  flush();
  std::fill(registers_[target].begin(), registers_[target].end(), T{0});
}

template <class T>
double DenseGeometry<T>::norm2(std::size_t row) {
  const T* x = rows_ + row * dim_;
  return kernels_.dot(x, nullptr, x, dim_);
}

template <class T>
bool DenseGeometry<T>::finite(std::size_t row) {
  return kernels_.finite(rows_ + row * dim_, dim_);
}

template <class T>
void DenseGeometry<T>::end_block() {
  flush();
  set_block(nullptr, 0);
}

template <class T>
void DenseGeometry<T>::save(State& state) const {
  state.set("geometry.dim", static_cast<std::int64_t>(dim_));
  const AlignedVector<T> zero(dim_);
  for (std::size_t r = 0; r < names_.size(); ++r) {
    const AlignedVector<T>& values = registers_[r].empty() ? zero : registers_[r];
    state.set(names_[r], std::span<const T>(values));
  }
}

template <class T>
void DenseGeometry<T>::load(const State& state) {
  const std::int64_t dim = state.integer("geometry.dim");
  if (dim < 0 || static_cast<std::size_t>(dim) != dim_)
    throw StateMismatch("DenseGeometry::load",
                        fmt::format("'geometry.dim' is {} in the state and {} here; load it into a sampler "
                                    "of vectors of that length",
                                    dim, dim_));
  std::vector<AlignedVector<T>> loaded;
  loaded.reserve(names_.size());
  for (const std::string& name : names_) {
    const std::vector<T> values = state.elements<T>(name, dim_);
    loaded.emplace_back(values.begin(), values.end());
  }
  registers_ = std::move(loaded);
  pending_.clear();
  pending_is_old_ = false;
}

template class DenseGeometry<float>;
template class DenseGeometry<double>;

}  // namespace cdgrab
