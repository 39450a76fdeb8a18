// SPDX-License-Identifier: Apache-2.0
// What is asked of a node when the batch is followed from its output to an input, and the answers.
#pragma once

#include <optional>
#include <utility>

#include "labels.hpp"

namespace cdgrab::torch {

using Shape = at::IntArrayRef;
using Found = std::optional<Place>;

struct Question {
  Node* node;
  std::size_t slot;
  Shape input;
  Shape output;
  Layout layout;
  std::int64_t batch;
  std::size_t piece = 0;  ///< the number of the output, of a node that has several

  /// The examples along the layout's dimension.
  [[nodiscard]] Examples examples() const {
    return examples_along(layout, output[static_cast<std::size_t>(layout.dim)], batch);
  }
};
using Answer = Found (*)(const Question&);

inline const Found kImpossible = std::nullopt;
inline const Found kNoBatch = Found(Place(std::nullopt));

/// The same examples, along another dimension.
inline Found at_dim(const Question& q, std::int64_t dim) {
  return Found(Place(Layout{dim, q.layout.inner, q.layout.labels}));
}
/// Other examples along a dimension of the input.
inline Found with_examples(const Question& q, std::int64_t dim, Examples examples) {
  return Found(Place(layout_of(dim, std::move(examples), q.batch)));
}
/// All of the input is one example's: along the first dimension as along any.
inline Found whole(const Question& q, std::int64_t example) {
  if (q.input.empty()) return kImpossible;
  return with_examples(q, 0, Examples(static_cast<std::size_t>(q.input[0]), example));
}
inline std::int64_t from_front(std::int64_t dim, Shape shape) {
  return dim < 0 ? dim + static_cast<std::int64_t>(shape.size()) : dim;
}
std::int64_t product(Shape shape, std::size_t begin);

/// Nodes that take pieces, put them together or reorder them, with the examples listed where they cut between
/// these (pieces.cpp).
template <class Split>
Found split(const Question& q);
Found slice(const Question& q);
Found select(const Question& q);
Found unbind(const Question& q);
Found cat(const Question& q);
Found stack(const Question& q);
Found flip(const Question& q);
Found copy_slices(const Question& q);

/// The same by an index (indexing.cpp). Where one entry would belong to two examples, it is impossible.
Found index(const Question& q);
Found index_put(const Question& q);
Found index_select(const Question& q);
Found gather(const Question& q);
template <class Put>
Found put_by_index(const Question& q);
Found segment_reduce(const Question& q);
Found pack_padded_sequence(const Question& q);

}  // namespace cdgrab::torch
