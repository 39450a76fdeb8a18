// SPDX-License-Identifier: Apache-2.0
// Vectors as rows in memory. Two pairs, or four rows, are decided in one read of the coordinates that
// also catches up with the signs of the group before (docs/design.md, "The dense geometry").
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cdgrab/aligned_vector.hpp"
#include "cdgrab/geometry.hpp"

namespace cdgrab {

namespace kernels {
template <class T>
struct Kernels;
}

/// T is float or double. float registers hold float; products are summed in double either way.
template <class T>
class DenseGeometry final : public Geometry {
 public:
  /// On the best kernels of this machine, or on the plain loops that define them.
  enum class Loops { kVectorised, kPlain };

  explicit DenseGeometry(std::size_t dim, Loops loops = Loops::kVectorised);

  /// The current block: `count` rows of dim() numbers, the caller's, valid until end_block().
  void set_block(const T* rows, std::size_t count);

  [[nodiscard]] std::size_t dim() const override { return dim_; }
  [[nodiscard]] std::size_t block_size() const override { return count_; }
  [[nodiscard]] std::size_t group_size(bool differences, bool root) const override;
  void declare(std::vector<std::string> names) override;
  void form(std::span<const Vector> group) override;
  void products(std::span<const Register> against, Wanted wanted, Products& out) override;
  void combine(Register target, std::span<const Weighted> weights) override;
  void blend(Register target, double scale, const Operand& operand) override;
  void clear(Register target) override;
  double norm2(std::size_t row) override;
  bool finite(std::size_t row) override;
  void end_block() override;
  void save(State& state) const override;
  void load(const State& state) override;

 private:
  static constexpr std::size_t kGroup = 4;

  /// Vector k is first[k] - second[k]; a null second is zero. Only a group that is about to be kept
  /// has scales other than 1.
  struct Group {
    std::size_t size = 0;
    std::array<const T*, kGroup> first{};
    std::array<const T*, kGroup> second{};
    std::array<T, kGroup> first_scale{};
    std::array<T, kGroup> second_scale{};
    bool differences = false;   ///< still to be formed, into the kept rows
    bool kept = false;          ///< formed: first[k] are the kept rows
    const T* centre = nullptr;  ///< the common second[k] when neither
  };
  /// A combine() that was put off: target += sum weights[k] * (vector k of the group it was said of).
  struct Pending {
    Register target = 0;
    std::array<T, kGroup> weights{};
  };

  const T* pointer(const Operand& operand);
  T* storage(Register target);
  void keep_now();
  void keep_formed();
  [[nodiscard]] bool one_step_down(std::span<const Register> against, Wanted wanted) const;
  void one_pass(Register against, double* raw);
  void difference_pass(Register against, double* raw);
  void centred_pass(Register against, double* raw);
  void separate_products(std::span<const Register> against, Wanted wanted, Products& out);
  [[nodiscard]] const Pending* pending_on(Register target) const;
  [[nodiscard]] const Group& pending_group() const { return pending_is_old_ ? last_ : group_; }
  void flush();
  void carry_out(const Pending& pending, std::size_t begin, std::size_t end);

  std::size_t dim_;
  const kernels::Kernels<T>& kernels_;
  const T* rows_ = nullptr;
  std::size_t count_ = 0;
  std::vector<std::string> names_;
  std::vector<AlignedVector<T>> registers_;  ///< empty: zero
  std::array<AlignedVector<T>, kGroup> kept_;
  Group group_;  ///< what products() and combine() speak of
  Group last_;   ///< the group before, as long as something is pending on it
  std::vector<Pending> pending_;
  bool pending_is_old_ = false;  ///< pending_ speaks of last_, not of group_
};

}  // namespace cdgrab
