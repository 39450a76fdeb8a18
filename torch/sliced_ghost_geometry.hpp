// SPDX-License-Identifier: Apache-2.0
// What an observed backward sends to the ranks, and what they hold of it (docs/design.md, section 9).
//
// A *part* is a large parameter, or the small ones of one meeting side by side. As a matrix of m x n it is
// cut along its longer side, so that every rank has some rows, or some columns, of every vector. A pair of
// examples travels as the slices of its difference or, where that is less, as the factors of both examples:
// the factor along the cut side in slices, the other one whole. Which of the two it is may change from
// message to message; where a slice is does not.
//
// A message: the pairs in it, the parameters that its sender has not told of before, and for each part that
// is not zero the slices or the factors. What rank r is to hold depends on r only by the cut.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cdgrab/sliced_geometry.hpp"
#include "observation.hpp"
#include "parameter_table.hpp"

namespace cdgrab::torch {

/// Whether a pair takes fewer bytes as slices of its difference than as the factors of both examples; on one
/// rank, where nothing travels, whether that takes less time.
bool travels_as_rows(const Contribution& gradients, std::size_t ranks);

/// How a part is cut.
struct Part {
  std::vector<std::size_t> members;  ///< numbers of the parameters
  std::vector<std::int64_t> numel;   ///< of each
  at::ScalarType dtype = at::kFloat;
  std::int64_t m = 0;
  std::int64_t n = 1;

  [[nodiscard]] std::int64_t dim() const { return m * n; }
  [[nodiscard]] bool by_columns() const { return n > m; }
  /// Of the rows or columns.
  [[nodiscard]] Slice slice(std::size_t rank, std::size_t ranks) const;
  /// Numbers of a slice.
  [[nodiscard]] std::int64_t size(std::size_t rank, std::size_t ranks) const;
  /// (count, dim) -> (count, size), a view where that is possible.
  [[nodiscard]] Tensor cut(const Tensor& rows, std::size_t rank, std::size_t ranks) const;
};

/// The parameters and the parts they make up: the same on both sides and on all ranks.
class PartList {
 public:
  /// The slots of the table that came after those that are known.
  void extend(const ParameterTable& table);

  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  [[nodiscard]] std::size_t slots() const { return begins_.size(); }
  [[nodiscard]] std::size_t dim() const { return dim_; }
  [[nodiscard]] bool wide() const { return wide_; }

  /// A whole vector, parameter by parameter, from the rows (dim) of the parts, undefined: zero; and back.
  [[nodiscard]] Array whole(const std::vector<Tensor>& parts) const;
  /// One that is shorter, saved when fewer parameters were known, has zeros at its end. Throws StateMismatch.
  [[nodiscard]] std::vector<Tensor> parts_of(const Array& whole) const;

 private:
  std::vector<Part> parts_;
  std::vector<std::size_t> begins_;  ///< of each parameter in a whole vector
  std::size_t dim_ = 0;
  bool wide_ = false;
};

class GhostSliceSender final : public SliceSender {
 public:
  explicit GhostSliceSender(std::size_t ranks);

  /// What a backward left behind is the current block. If `parameters` names some, all that count are known
  /// from then on, whatever this backward depends on.
  void set_block(Observed&& observed, const ParameterSet& parameters);

  [[nodiscard]] std::size_t block_size() const override { return count_; }
  double norm2(std::size_t row) override;
  bool finite(std::size_t row) override;
  std::size_t pack(std::span<const Vector> differences, std::span<Bytes> out) override;
  void keep(Register carry, const Operand& row) override;
  void end_block() override;
  [[nodiscard]] Array carry(Register carry) const override;
  void set_carry(Register carry, const Array& whole) override;
  void save(State& state) const override;
  void load(const State& state) override;

 private:
  /// Rows by part; a part that is not there is zero.
  using Gradients = std::unordered_map<std::size_t, Contribution>;
  struct Carry {
    Gradients gradients;  ///< of one example
    double magnitude = 0.0;
  };

  void meet(const Observed& observed, const ParameterSet& parameters);
  [[nodiscard]] const Gradients& gradients_of(const Operand& operand) const;
  [[nodiscard]] std::vector<Tensor> row_of(const Operand& operand) const;
  /// No coordinate is larger; the operand's scale does not count.
  [[nodiscard]] double magnitude(const Operand& operand);
  [[nodiscard]] bool finite(const Vector& difference);
  [[nodiscard]] bool has(std::size_t part, std::span<const Vector> pairs) const;
  [[nodiscard]] std::vector<Contribution> examples(std::size_t part, std::span<const Vector> pairs) const;
  [[nodiscard]] std::optional<Contribution> as_factors(std::size_t part, std::span<const Vector> pairs);
  [[nodiscard]] Tensor differences(std::size_t part, std::span<const Vector> pairs) const;
  void make_room(const std::vector<std::size_t>& parts, std::size_t count, std::span<Bytes> out) const;
  void pack_rows(std::size_t part, std::span<const Vector> pairs, std::span<Bytes> out) const;
  void pack_factors(std::size_t part, const Contribution& examples, std::span<Bytes> out) const;

  std::size_t ranks_;
  ParameterTable table_;
  PartList parts_;
  std::size_t told_ = 0;  ///< slots that all ranks have heard of
  std::size_t count_ = 0;
  Gradients block_;
  std::vector<double> magnitudes_;  ///< of the rows of the block, if asked for
  std::vector<double> norms_;       ///< the same
  std::map<Register, Carry> carries_;
};

class HeldPart;
class Reader;

class GhostSliceHolder final : public SliceHolder {
 public:
  GhostSliceHolder(std::size_t rank, std::size_t ranks);
  ~GhostSliceHolder() override;

  [[nodiscard]] std::size_t dim() const override { return parts_.dim(); }
  [[nodiscard]] DType dtype() const override { return parts_.wide() ? DType::kF64 : DType::kF32; }
  void hold(Bytes packed, std::size_t count) override;
  [[nodiscard]] std::size_t chunk() const override;
  [[nodiscard]] std::size_t held_bytes() const override;
  void products(std::span<const std::uint64_t> numbers, Wanted wanted, Products& out) override;
  void combine(std::span<const std::uint64_t> numbers, std::span<const int> signs) override;
  std::vector<Bytes> drop(std::span<const std::uint64_t> numbers) override;
  void clear() override;
  [[nodiscard]] Bytes accumulator() const override;
  void set_accumulator(Bytes part) override;
  [[nodiscard]] Bytes held(std::uint64_t number) const override;
  [[nodiscard]] Array join(std::span<const Bytes> parts) const override;
  [[nodiscard]] Bytes cut(const Array& whole) const override;
  void save(State& state) const override;
  void load(const State& state) override;

 private:
  /// In what form the first message brought it. A state says nothing of that: how layers travel depends on
  /// the number of ranks.
  enum class Kind { kUnknown, kRows, kFactors };
  /// What one message brought.
  struct Parcel {
    std::uint64_t first = 0;  ///< number of its first pair
    std::size_t count = 0;
    std::size_t dropped = 0;
    std::unordered_map<std::size_t, std::uint64_t> firsts;  ///< by part that is there: number in the part
  };
  /// Those of some numbers that a part has.
  struct Found {
    std::vector<std::size_t> at;         ///< index in the list of numbers
    std::vector<std::uint64_t> numbers;  ///< in the part
  };

  void hear(Reader& from);
  std::size_t hold_message(Reader& from);
  /// Made for what comes as `kind`, unless it has come before; null if nothing of it is here.
  HeldPart* part(std::size_t part, Kind kind);
  void turn_to_factors(std::size_t part);
  void extend_parts();
  [[nodiscard]] Contribution read_factors(Reader& from, const Part& of, std::size_t count) const;
  [[nodiscard]] std::size_t place_of(std::uint64_t number) const;
  [[nodiscard]] Found find(std::size_t part, std::span<const std::uint64_t> numbers) const;
  [[nodiscard]] Bytes message_of(const std::vector<Tensor>& slices) const;
  [[nodiscard]] std::vector<Tensor> slices_of(const Bytes& message, std::size_t rank) const;

  std::size_t rank_;
  std::size_t ranks_;
  ParameterTable table_;
  PartList parts_;
  std::vector<Kind> kinds_;                      ///< per part
  std::vector<std::unique_ptr<HeldPart>> held_;  ///< per part; null: nothing came, or nothing of it is here
  std::map<std::size_t, std::uint64_t> next_in_part_;
  std::deque<Parcel> parcels_;  ///< by number
  std::uint64_t next_ = 0;
};

}  // namespace cdgrab::torch
