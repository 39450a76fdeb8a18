// SPDX-License-Identifier: Apache-2.0
// Where the vectors of many workers live: coordinates are cut into as many slices as there are ranks, and
// rank r holds slice r of every pair difference whose sign has not fallen and of the one accumulator. What
// travels is the difference, once, from the rank that has the rows (SliceSender) to every rank (SliceHolder);
// partial products are summed over the ranks by whoever owns both (docs/design.md, section 9).
//
// The two sides share nothing: a sender is called from the thread that deposits, a holder from the one that
// runs the rounds. All ranks hold the same vectors under the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cdgrab/bytes.hpp"
#include "cdgrab/geometry.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab {

/// Coordinates [begin, end) of a vector.
struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] std::size_t size() const { return end - begin; }
};
/// Rank r's part of `dim` coordinates: lengths differ by one at most. A rank beyond the holders has none.
Slice slice_of(std::size_t dim, std::size_t rank, std::size_t holders);

/// At the rank that hosts the workers: the rows of the current block, which are of one worker, and the row
/// that waits for its partner, one per hosted worker: its *carry*. Registers are carries: Operand::reg(h) is
/// that of the h-th hosted worker, and keeps the scale it was kept with.
class SliceSender {
 public:
  virtual ~SliceSender() = default;
  /// Rows of the current block.
  [[nodiscard]] virtual std::size_t block_size() const = 0;
  /// |row|^2, and whether every coordinate of the row is finite.
  virtual double norm2(std::size_t row) = 0;
  virtual bool finite(std::size_t row) = 0;

  /// Appends to out[r], for each rank r, what it is to hold of each difference (first - second, rows of the
  /// block or carries, with scales). Stops before a difference that is not finite; returns how many were
  /// packed.
  virtual std::size_t pack(std::span<const Vector> differences, std::span<Bytes> out) = 0;
  /// The carry of a hosted worker becomes the row, times its scale. The block is still there.
  virtual void keep(Register carry, const Operand& row) = 0;
  /// The rows are about to go.
  virtual void end_block() = 0;

  /// A carry as a whole vector, the same whatever the number of ranks; and back.
  [[nodiscard]] virtual Array carry(Register carry) const = 0;
  virtual void set_carry(Register carry, const Array& whole) = 0;
};

/// At every rank: its part of the held differences and of the accumulator, which is zero at first.
class SliceHolder {
 public:
  virtual ~SliceHolder() = default;
  /// Coordinates of a whole vector, and their type: the same on all ranks.
  [[nodiscard]] virtual std::size_t dim() const = 0;
  [[nodiscard]] virtual DType dtype() const = 0;

  /// True, on all ranks, if vectors are not cut: rank 0 holds them whole and the others nothing, so that its
  /// products are known without a sum.
  [[nodiscard]] virtual bool whole() const { return false; }

  /// What one rank packed for this one: `count` differences. They get the next numbers, from 0 on.
  virtual void hold(Bytes packed, std::size_t count) = 0;
  /// Bytes held for differences.
  [[nodiscard]] virtual std::size_t held_bytes() const = 0;

  /// This rank's share of the products of the numbered vectors v_k: <v_k, accumulator>, and what is wanted of
  /// <v_k, v_j> and |v_k|^2. Summed over the ranks they are the products of the whole vectors.
  virtual void products(std::span<const std::uint64_t> numbers, Wanted wanted, Products& out) = 0;
  /// accumulator += sum_k signs[k] v_k; a sign of 0 leaves its vector out.
  virtual void combine(std::span<const std::uint64_t> numbers, std::span<const int> signs) = 0;
  /// These are not asked for again. Returns buffers that hold() was given and that are free now, to be used
  /// again; it may keep or free them as well.
  virtual std::vector<Bytes> drop(std::span<const std::uint64_t> numbers) = 0;
  /// The end of an epoch: the accumulator is zero, nothing is held, numbers go on from 0.
  virtual void clear() = 0;

  /// This rank's part of the accumulator and of a held vector, as hold() would take it.
  [[nodiscard]] virtual Bytes accumulator() const = 0;
  virtual void set_accumulator(Bytes part) = 0;
  [[nodiscard]] virtual Bytes held(std::uint64_t number) const = 0;
  /// A whole vector from the parts of all ranks, by rank, and this rank's part of one. Throws StateMismatch
  /// if it does not fit.
  [[nodiscard]] virtual Array join(std::span<const Bytes> parts) const = 0;
  [[nodiscard]] virtual Bytes cut(const Array& whole) const = 0;
};

/// Both sides of one rank. Null: rows in memory, cut into slices; made when the first come.
struct SlicedGeometry {
  std::unique_ptr<SliceSender> sender;
  std::unique_ptr<SliceHolder> holder;
};

/// Rows in memory, cut for the first `holders` of `ranks`. T is float or double.
template <class T>
class DenseSliceSender final : public SliceSender {
 public:
  DenseSliceSender(std::size_t dim, std::size_t ranks, std::size_t holders);
  DenseSliceSender(std::size_t dim, std::size_t ranks) : DenseSliceSender(dim, ranks, ranks) {}

  /// The current block: `count` rows of dim numbers, the caller's, valid until end_block().
  void set_block(const T* rows, std::size_t count);

  [[nodiscard]] std::size_t dim() const { return dim_; }
  [[nodiscard]] std::size_t block_size() const override { return count_; }
  double norm2(std::size_t row) override;
  bool finite(std::size_t row) override;
  std::size_t pack(std::span<const Vector> differences, std::span<Bytes> out) override;
  void keep(Register carry, const Operand& row) override;
  void end_block() override;
  [[nodiscard]] Array carry(Register carry) const override;
  void set_carry(Register carry, const Array& whole) override;

 private:
  [[nodiscard]] const T* pointer(const Operand& operand) const;

  std::size_t dim_;
  std::size_t ranks_;
  std::size_t holders_;
  const T* rows_ = nullptr;
  std::size_t count_ = 0;
  std::map<Register, std::vector<T>> carries_;
};

template <class T>
class DenseSliceHolder final : public SliceHolder {
 public:
  DenseSliceHolder(std::size_t dim, std::size_t rank, std::size_t holders);

  [[nodiscard]] std::size_t dim() const override { return dim_; }
  [[nodiscard]] DType dtype() const override;
  [[nodiscard]] bool whole() const override { return holders_ == 1; }
  void hold(Bytes packed, std::size_t count) override;
  [[nodiscard]] std::size_t held_bytes() const override { return held_bytes_; }
  void products(std::span<const std::uint64_t> numbers, Wanted wanted, Products& out) override;
  void combine(std::span<const std::uint64_t> numbers, std::span<const int> signs) override;
  std::vector<Bytes> drop(std::span<const std::uint64_t> numbers) override;
  void clear() override;
  [[nodiscard]] Bytes accumulator() const override;
  void set_accumulator(Bytes part) override;
  [[nodiscard]] Bytes held(std::uint64_t number) const override;
  [[nodiscard]] Array join(std::span<const Bytes> parts) const override;
  [[nodiscard]] Bytes cut(const Array& whole) const override;

 private:
  /// What came from one rank in one round.
  struct Parcel {
    std::uint64_t first = 0;  ///< number of its first vector
    std::size_t count = 0;
    std::size_t dropped = 0;
    Bytes bytes;
  };

  [[nodiscard]] const Parcel& parcel_of(std::uint64_t number) const;
  [[nodiscard]] const T* vector(std::uint64_t number) const;
  [[nodiscard]] std::size_t part_bytes() const { return slice_.size() * sizeof(T); }

  std::size_t dim_;
  std::size_t holders_;
  Slice slice_;
  std::vector<T> accumulator_;
  std::deque<Parcel> parcels_;  ///< by number; those dropped whole are gone from the front
  std::uint64_t next_ = 0;
  std::size_t held_bytes_ = 0;
  std::vector<double> raw_;
};

}  // namespace cdgrab
