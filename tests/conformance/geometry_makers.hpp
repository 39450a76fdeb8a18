// SPDX-License-Identifier: Apache-2.0
// One of each kind of geometry, and how rows get into it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cdgrab/composite_geometry.hpp"
#include "cdgrab/dense_geometry.hpp"
#include "cdgrab/gram_geometry.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab::suite {

using Plain = std::vector<double>;

/// Makes one kind of geometry and puts rows into it.
class Maker {
 public:
  virtual ~Maker() = default;
  virtual std::unique_ptr<Geometry> make(std::size_t dim) = 0;
  virtual void set_block(Geometry& geometry, const std::vector<float>& rows, std::size_t count) = 0;
};

template <class T>
class DenseMaker final : public Maker {
 public:
  explicit DenseMaker(typename DenseGeometry<T>::Loops loops) : loops_(loops) {}
  std::unique_ptr<Geometry> make(std::size_t dim) override {
    return std::make_unique<DenseGeometry<T>>(dim, loops_);
  }
  void set_block(Geometry& geometry, const std::vector<float>& rows, std::size_t count) override {
    rows_.assign(rows.begin(), rows.end());
    dynamic_cast<DenseGeometry<T>&>(geometry).set_block(rows_.data(), count);
  }

 private:
  typename DenseGeometry<T>::Loops loops_;
  std::vector<T> rows_;
};

/// The dullest geometry in scalars: its vectors lie in the open.
class PlainGram final : public GramGeometry {
 public:
  explicit PlainGram(std::size_t dim) : dim_(dim) {}
  void set_rows(std::vector<Plain> rows) {
    block_ = std::move(rows);
    begin_block(block_.size());
  }
  [[nodiscard]] std::size_t dim() const override { return dim_; }
  void save(State& state) const override {
    state.set("geometry.dim", static_cast<std::int64_t>(dim_));
    for (std::size_t r = 0; r < names().size(); ++r) state.set(names()[r], std::span<const double>(at(r)));
  }
  void load(const State& state) override {
    std::vector<Plain> loaded;
    for (const std::string& name : names()) loaded.push_back(state.elements<double>(name, dim_));
    registers_ = std::move(loaded);
    set_live(std::vector<bool>(names().size(), true));
  }

 protected:
  void measure(std::span<const Register> live, std::span<const Register> centring,
               std::span<double> gram) override {
    const std::vector<Plain> all = basis(live);
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::size_t j = 0; j < all.size(); ++j)
        for (std::size_t c = 0; c < dim_; ++c) gram[i * all.size() + j] += all[i][c] * all[j][c];
    // What was not asked for must not be looked at.
    const auto asked = [&](Register r) {
      return std::find(centring.begin(), centring.end(), r) != centring.end();
    };
    for (std::size_t i = 0; i < live.size(); ++i)
      for (std::size_t j = 0; j < live.size(); ++j)
        if (!asked(live[i]) && !asked(live[j]))
          gram[(block_size() + i) * all.size() + block_size() + j] = std::nan("");
  }
  void apply(std::span<const Register> live, std::span<const Change> changes) override {
    const std::vector<Plain> all = basis(live);
    for (const Change& change : changes) {
      Plain value(dim_);
      for (std::size_t j = 0; j < change.weights.size(); ++j)
        for (std::size_t c = 0; c < dim_ && change.weights[j] != 0.0; ++c)
          value[c] += change.weights[j] * all[j][c];
      registers_.resize(names().size(), Plain(dim_));
      registers_[change.target] = value;
    }
  }

 private:
  [[nodiscard]] Plain at(std::size_t r) const { return r < registers_.size() ? registers_[r] : Plain(dim_); }
  [[nodiscard]] std::vector<Plain> basis(std::span<const Register> live) const {
    std::vector<Plain> all = block_;
    if (block_size() == 0) all.clear();
    for (const Register r : live) all.push_back(at(r));
    return all;
  }

  std::size_t dim_;
  std::vector<Plain> block_;
  std::vector<Plain> registers_;
};

/// Columns [begin, end) of each row.
inline std::vector<float> columns(const std::vector<float>& rows, std::size_t count, std::size_t begin,
                                  std::size_t end) {
  std::vector<float> out;
  const std::size_t dim = count == 0 ? 0 : rows.size() / count;
  for (std::size_t k = 0; k < count; ++k)
    out.insert(out.end(), rows.begin() + static_cast<std::ptrdiff_t>(k * dim + begin),
               rows.begin() + static_cast<std::ptrdiff_t>(k * dim + end));
  return out;
}

inline void set_plain_rows(PlainGram& gram, const std::vector<float>& rows, std::size_t count) {
  std::vector<Plain> plain;
  for (std::size_t k = 0; k < count; ++k)
    plain.emplace_back(rows.begin() + static_cast<std::ptrdiff_t>(k * gram.dim()),
                       rows.begin() + static_cast<std::ptrdiff_t>((k + 1) * gram.dim()));
  gram.set_rows(std::move(plain));
}

class GramMaker final : public Maker {
 public:
  std::unique_ptr<Geometry> make(std::size_t dim) override { return std::make_unique<PlainGram>(dim); }
  void set_block(Geometry& geometry, const std::vector<float>& rows, std::size_t count) override {
    set_plain_rows(dynamic_cast<PlainGram&>(geometry), rows, count);
  }
};

/// The first third of the coordinates as rows in memory, the rest in scalars.
class CompositeMaker final : public Maker {
 public:
  std::unique_ptr<Geometry> make(std::size_t dim) override {
    auto dense = std::make_unique<DenseGeometry<double>>(dim / 3);
    auto gram = std::make_unique<PlainGram>(dim - dim / 3);
    dense_ = dense.get();
    gram_ = gram.get();
    std::vector<CompositeGeometry::Part> parts;
    parts.push_back({"a", std::move(dense)});
    parts.push_back({"b", std::move(gram)});
    return std::make_unique<CompositeGeometry>(std::move(parts));
  }
  void set_block(Geometry& geometry, const std::vector<float>& rows, std::size_t count) override {
    const auto first = columns(rows, count, 0, geometry.dim() / 3);
    rows_.assign(first.begin(), first.end());
    dense_->set_block(rows_.data(), count);
    set_plain_rows(*gram_, columns(rows, count, geometry.dim() / 3, geometry.dim()), count);
  }

 private:
  DenseGeometry<double>* dense_ = nullptr;
  PlainGram* gram_ = nullptr;
  std::vector<double> rows_;
};

}  // namespace cdgrab::suite
