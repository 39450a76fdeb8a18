// SPDX-License-Identifier: Apache-2.0
#include "held_part.hpp"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "cdgrab/sliced_geometry.hpp"

namespace cdgrab::torch {

Bytes bytes_of(const Tensor& values) {
  const Tensor flat = values.contiguous();
  return {{static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes()}};
}

Tensor differences_of_pairs(const Tensor& rows) {
  const Tensor pairs = rows.view({rows.size(0) / 2, 2, rows.size(1)});
  return pairs.select(1, 0) - pairs.select(1, 1);
}

namespace {

template <class T>
constexpr at::ScalarType kScalarType = std::is_same_v<T, float> ? at::kFloat : at::kDouble;

/// Keeps the bytes.
Tensor tensor_of(Bytes bytes, std::vector<std::int64_t> shape, at::ScalarType dtype) {
  auto* kept = new Bytes(std::move(bytes));
  return at::from_blob(
      kept->data(), shape, [kept](void* /*data*/) { delete kept; }, dtype);
}

/// The slice is all that the core's holder of rows knows.
template <class T>
class HeldRows final : public HeldPart {
 public:
  explicit HeldRows(std::int64_t size) : size_(size), rows_(static_cast<std::size_t>(size), 0, 1) {}

  void hold_rows(Bytes rows, std::size_t count) override { rows_.hold(std::move(rows), count); }
  void hold_factors(Contribution examples) override {
    const Tensor rows = differences_of_pairs(examples.rows().to(kScalarType<T>));
    hold_rows(bytes_of(rows), static_cast<std::size_t>(rows.size(0)));
  }
  [[nodiscard]] std::size_t held_bytes() const override { return rows_.held_bytes(); }
  void products(std::span<const std::uint64_t> numbers, Wanted wanted, Products& out) override {
    rows_.products(numbers, wanted, out);
  }
  void combine(std::span<const std::uint64_t> numbers, std::span<const int> signs) override {
    rows_.combine(numbers, signs);
  }
  void drop(std::span<const std::uint64_t> numbers) override { static_cast<void>(rows_.drop(numbers)); }
  void clear() override { rows_.clear(); }
  [[nodiscard]] Tensor accumulator() const override {
    return tensor_of(rows_.accumulator(), {size_}, kScalarType<T>);
  }
  void set_accumulator(const Tensor& values) override { rows_.set_accumulator(bytes_of(values)); }
  [[nodiscard]] Tensor held(std::uint64_t number) const override {
    return tensor_of(rows_.held(number), {size_}, kScalarType<T>);
  }

 private:
  std::int64_t size_;
  DenseSliceHolder<T> rows_;
};

class HeldFactors final : public HeldPart {
 public:
  HeldFactors(std::int64_t size, at::ScalarType dtype) : accumulator_(at::zeros({size}, dtype)) {}

  void hold_rows(Bytes rows, std::size_t count) override {
    const std::size_t bytes = rows.size();
    const Tensor all = tensor_of(std::move(rows), {static_cast<std::int64_t>(count), accumulator_.size(0)},
                                 accumulator_.scalar_type());
    push({Contribution::of_rows(all), false}, count, bytes);
  }
  void hold_factors(Contribution examples) override {
    const auto count = static_cast<std::size_t>(examples.batch() / 2);
    const std::size_t bytes = examples.factor_bytes();
    push({std::move(examples), true}, count, bytes);
  }
  [[nodiscard]] std::size_t held_bytes() const override { return held_bytes_; }
  void products(std::span<const std::uint64_t> numbers, Wanted wanted, Products& out) override;
  void combine(std::span<const std::uint64_t> numbers, std::span<const int> signs) override;
  void drop(std::span<const std::uint64_t> numbers) override;
  void clear() override;
  [[nodiscard]] Tensor accumulator() const override { return accumulator_; }
  void set_accumulator(const Tensor& values) override { accumulator_.copy_(values); }
  [[nodiscard]] Tensor held(std::uint64_t number) const override {
    return formed(some(place_of(number), {number})).rows().view({-1});
  }

 private:
  /// Differences, or two examples for each.
  struct Vectors {
    Contribution rows;
    bool pairs = false;
  };
  struct Parcel {
    std::uint64_t first = 0;
    std::size_t count = 0;
    std::size_t dropped = 0;
    std::size_t bytes = 0;
    Vectors vectors;
  };
  /// The last that was asked for: combine() comes after products().
  struct Gathered {
    std::vector<std::uint64_t> numbers;
    Vectors vectors;
  };

  void push(Vectors vectors, std::size_t count, std::size_t bytes) {
    held_bytes_ += bytes;
    parcels_.push_back({next_, count, 0, bytes, std::move(vectors)});
    next_ += count;
  }
  [[nodiscard]] std::size_t place_of(std::uint64_t number) const {
    const auto after = std::upper_bound(parcels_.begin(), parcels_.end(), number,
                                        [](std::uint64_t n, const Parcel& p) { return n < p.first; });
    return static_cast<std::size_t>(after - parcels_.begin()) - 1;
  }
  [[nodiscard]] Vectors some(std::size_t place, const std::vector<std::uint64_t>& numbers) const;
  [[nodiscard]] static Contribution formed(const Vectors& vectors);
  [[nodiscard]] const Vectors& gather(std::span<const std::uint64_t> numbers);

  Tensor accumulator_;
  std::deque<Parcel> parcels_;
  std::uint64_t next_ = 0;
  std::size_t held_bytes_ = 0;
  std::optional<Gathered> gathered_;
};

/// Of one parcel.
HeldFactors::Vectors HeldFactors::some(std::size_t place, const std::vector<std::uint64_t>& numbers) const {
  const Parcel& parcel = parcels_[place];
  if (numbers.size() == parcel.count && std::is_sorted(numbers.begin(), numbers.end())) return parcel.vectors;
  std::vector<std::int64_t> index;
  for (const std::uint64_t number : numbers) {
    const auto k = static_cast<std::int64_t>(number - parcel.first);
    if (parcel.vectors.pairs)
      index.insert(index.end(), {2 * k, 2 * k + 1});
    else
      index.push_back(k);
  }
  return {parcel.vectors.rows.select(at::tensor(index, at::kLong)), parcel.vectors.pairs};
}

Contribution HeldFactors::formed(const Vectors& vectors) {
  return vectors.pairs ? Contribution::of_rows(differences_of_pairs(vectors.rows.rows())) : vectors.rows;
}

const HeldFactors::Vectors& HeldFactors::gather(std::span<const std::uint64_t> numbers) {
  if (gathered_ &&
      std::equal(numbers.begin(), numbers.end(), gathered_->numbers.begin(), gathered_->numbers.end()))
    return gathered_->vectors;
  std::vector<Vectors> all;
  for (std::size_t k = 0; k < numbers.size();) {
    const std::size_t place = place_of(numbers[k]);
    std::vector<std::uint64_t> run;
    for (; k < numbers.size() && place_of(numbers[k]) == place; ++k) run.push_back(numbers[k]);
    all.push_back(some(place, run));
  }
  const bool alike = std::all_of(all.begin(), all.end(), [&](const Vectors& each) {
    return each.pairs == all.front().pairs && each.rows.alike(all.front().rows);
  });
  std::vector<Contribution> rows;
  for (const Vectors& each : all) rows.push_back(alike ? each.rows : formed(each));
  gathered_ =
      Gathered{{numbers.begin(), numbers.end()}, {Contribution::cat(rows), alike && all.front().pairs}};
  return gathered_->vectors;
}

/// Those of the examples, and from them those of their differences, in float64.
void HeldFactors::products(std::span<const std::uint64_t> numbers, Wanted wanted, Products& out) {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<std::int64_t>(numbers.size());
  const auto& [rows, pairs] = gather(numbers);
  Tensor inner = rows.inner(accumulator_).to(at::kDouble);
  if (pairs) inner = differences_of_pairs(inner.unsqueeze(1)).squeeze(1);
  inner = inner.contiguous();
  out.inner.assign(inner.const_data_ptr<double>(), inner.const_data_ptr<double>() + count);
  out.gram.clear();
  out.norms.clear();
  if (!wanted.gram && !wanted.norms) return;
  Tensor gram = rows.gram().to(at::kDouble);
  if (pairs) gram = differences_of_pairs(differences_of_pairs(gram).t().contiguous());
  gram = gram.contiguous();
  const double* values = gram.const_data_ptr<double>();
  for (std::int64_t k = 0; k < count; ++k) {
    const double* row = values + k * count;
    if (wanted.gram) out.gram.insert(out.gram.end(), row, row + k);
    if (wanted.norms) out.norms.push_back(row[k]);
  }
}

void HeldFactors::combine(std::span<const std::uint64_t> numbers, std::span<const int> signs) {
  const at::NoGradGuard no_grad;
  const auto& [rows, pairs] = gather(numbers);
  std::vector<double> weights;
  for (const int sign : signs) {
    weights.push_back(sign);
    if (pairs) weights.push_back(-sign);
  }
  rows.add_to(accumulator_, at::tensor(weights, accumulator_.options()));
}

void HeldFactors::drop(std::span<const std::uint64_t> numbers) {
  gathered_.reset();
  for (const std::uint64_t number : numbers) {
    Parcel& parcel = parcels_[place_of(number)];
    if (++parcel.dropped < parcel.count) continue;
    held_bytes_ -= parcel.bytes;
    parcel.vectors = {};
  }
  while (!parcels_.empty() && parcels_.front().dropped == parcels_.front().count) parcels_.pop_front();
}

void HeldFactors::clear() {
  gathered_.reset();
  parcels_.clear();
  next_ = 0;
  held_bytes_ = 0;
  accumulator_.zero_();
}

}  // namespace

std::unique_ptr<HeldPart> make_held_rows(std::int64_t size, at::ScalarType dtype) {
  if (dtype == at::kDouble) return std::make_unique<HeldRows<double>>(size);
  return std::make_unique<HeldRows<float>>(size);
}

std::unique_ptr<HeldPart> make_held_factors(std::int64_t size, at::ScalarType dtype) {
  return std::make_unique<HeldFactors>(size, dtype);
}

}  // namespace cdgrab::torch
