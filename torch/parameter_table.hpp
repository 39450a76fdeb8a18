// SPDX-License-Identifier: Apache-2.0
// Which parameter is which: numbers in the order in which they were met, that a state brings back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd.hpp"
#include "cdgrab/state.hpp"

namespace cdgrab::torch {

/// Products and registers in float64, not float32.
inline bool wide(const Tensor& tensor) { return tensor.scalar_type() == at::kDouble; }

/// Where the gradients of a parameter are held: in no part, in a part of its own, or in one with all others
/// of its meeting that share.
enum class Home { kNone, kOwn, kShared };

/// Gradients of up to so many numbers share one matrix of rows: a copy costs less than a pass of their own.
inline bool is_small(std::int64_t numbers) { return numbers <= 4096; }

/// A parameter of a backward.
struct Met {
  Tensor parameter;
  std::string name;  ///< empty where it is not known
  Home home = Home::kNone;
  std::int64_t shortened = 0;  ///< numbers that a sketch leaves of its gradient; 0: there is none

  [[nodiscard]] std::int64_t numbers() const { return shortened > 0 ? shortened : parameter.numel(); }
};

/// A parameter that counts. Where its gradients are held is decided when it is first met, and stays: a short
/// batch, or the first one after a resume, finds the registers where they are.
struct Slot {
  std::int64_t numel = 0;
  std::int64_t part = -1;  ///< kNoPart, or its number: they are counted as they come
  bool wide = false;
  std::int64_t meeting = 0;  ///< the backward in which it was met, of those that met new ones
  std::string name = {};     ///< empty where it is not known
  bool taken = false;        ///< by a parameter that was met, not only loaded
  /// The first of its dimensions that is not 1; 0 in a state that does not say so.
  std::int64_t rows = 0;
};
constexpr std::int64_t kNoPart = -1;

class ParameterTable {
 public:
  /// Gives each of these a number, if it has none. Those that were loaded are known by name, or by the order
  /// in which they were met if that was in one backward, or by size. Throws StateMismatch, or UserError if
  /// none of them has a number and others have.
  void meet(const std::vector<Met>& parameters);
  /// Of a parameter that was met.
  [[nodiscard]] std::size_t number(const Tensor& parameter) const {
    return number_.at(parameter.unsafeGetTensorImpl());
  }

  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  [[nodiscard]] std::size_t parts() const { return static_cast<std::size_t>(parts_); }
  /// A slot that nobody has taken.
  void append(Slot slot);
  /// Appends what the other has more. Throws StateMismatch, and changes nothing, if what both have is not in
  /// the same places.
  void extend(const ParameterTable& other);
  [[nodiscard]] bool same_places(const ParameterTable& other) const;

  void save(State& state) const;
  /// `most`: entries that all parameters may have together. Throws StateMismatch.
  static ParameterTable load(const State& state, std::size_t most);

 private:
  [[nodiscard]] bool known(const Met& met) const {
    return number_.contains(met.parameter.unsafeGetTensorImpl());
  }
  /// The loaded slot of each of these parameters, or none if it is new. Throws StateMismatch.
  [[nodiscard]] std::vector<std::optional<std::size_t>> recall(const std::vector<const Met*>& unknown) const;
  [[nodiscard]] std::optional<std::size_t> recall_by_size(const Met& one,
                                                          const std::vector<const Met*>& unknown) const;
  void require_fits(std::size_t number, const Met& met) const;

  std::vector<Slot> slots_;
  std::int64_t parts_ = 0;
  std::int64_t meetings_ = 0;
  std::unordered_map<const void*, std::size_t> number_;  ///< of a parameter that was met, in slots_
  std::vector<Tensor> met_;  ///< keeps them alive, so that no other can take a parameter's place in memory
};

}  // namespace cdgrab::torch
