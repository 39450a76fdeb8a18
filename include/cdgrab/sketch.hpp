// SPDX-License-Identifier: Apache-2.0
// Sketches: shorter rows with the same inner products in expectation, E[<Px,Py>] = <x,y>
// (docs/math.md, section 8). A sketch is applied where rows are formed; a dense geometry holds the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cdgrab {

enum class SketchKind { kNone, kGauss, kSparse, kKron, kPca };

/// What the words `sketch=` and `eps=` of a spec say.
struct SketchOptions {
  SketchKind kind = SketchKind::kNone;
  std::size_t size = 0;  ///< r; for kron and pca, r per side. 0: chosen from eps
  double eps = 0.0;      ///< relative error of squared norms, in (0, 1); used when size is 0

  bool operator==(const SketchOptions&) const = default;
};

/// Dimensions of one tensor; a row is the concatenation of all of them.
using Shape = std::vector<std::size_t>;

/// A fixed linear map. Contract: a row that is not finite gives a row that is not finite.
template <class T>
class Sketch {
 public:
  virtual ~Sketch() = default;
  [[nodiscard]] virtual std::size_t input_dim() const = 0;
  [[nodiscard]] virtual std::size_t output_dim() const = 0;
  /// `rows` is count x input_dim, `out` count x output_dim, both row by row.
  virtual void apply(const T* rows, std::size_t count, T* out) const = 0;
};

/// The Johnson-Lindenstrauss bound: a length at which n vectors keep all pairwise distances
/// within 1 +- eps. Throws UserError unless 0 < eps < 1.
std::size_t johnson_lindenstrauss(std::size_t n, double eps);

/// The map that `options` describe for n rows of length dim; null when there is none to apply
/// (kind none, or a sketch no shorter than the row). The map is a pure function of the arguments.
/// `shapes` is needed by kron only and must multiply and add up to dim. Throws UserError, also for pca, whose
/// maps are learned where rows are formed (the torch adapter).
template <class T>
std::unique_ptr<Sketch<T>> make_sketch(const SketchOptions& options, std::size_t n, std::size_t dim,
                                       const std::vector<Shape>& shapes, std::uint64_t seed);

/// One tensor of a row, read as a matrix of `rows` x `columns`, and the most that is left of either side.
struct KronTensor {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t size = 0;
};

/// How kron sketches one tensor of n rows. pca's maps have these sizes.
KronTensor kron_tensor(const SketchOptions& options, std::size_t n, const Shape& shape);

/// The map that kron applies to a side of `length` of the tensor at `index` of the row: size x length
/// numbers, row by row; empty, where the side is no longer than `size` and stays as it is.
enum class KronSide { kLeft, kRight };
template <class T>
std::vector<T> kron_map(std::size_t length, std::size_t size, std::uint64_t seed, std::size_t index,
                        KronSide side);

}  // namespace cdgrab
