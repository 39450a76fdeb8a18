// SPDX-License-Identifier: Apache-2.0
// Following the batch through nodes that take pieces of a tensor, or put pieces together.
#include <torch/csrc/autograd/functions/tensor.h>

#include <algorithm>

#include "question.hpp"

namespace cdgrab::torch {
namespace {

/// Along another dimension than that of the examples.
Found beside(const Question& q) {
  const auto dim = static_cast<std::size_t>(q.layout.dim);
  return dim < q.input.size() && q.input.size() == q.output.size() && q.input[dim] == q.output[dim]
             ? at_dim(q, q.layout.dim)
             : kImpossible;
}

/// What the output says of the input along `dim`, where it is entries begin, begin + step, ..
Examples cut_out(const Question& q, std::int64_t dim, const Examples& piece, std::int64_t begin,
                 std::int64_t step) {
  Examples all(static_cast<std::size_t>(q.input[static_cast<std::size_t>(dim)]), kNobody);
  for (std::size_t i = 0; i < piece.size(); ++i)
    all[static_cast<std::size_t>(begin) + i * static_cast<std::size_t>(step)] = piece[i];
  return all;
}

/// `found`, the place beside dimension `dim`. If all of the output is one example's, it may instead have been
/// cut out along `dim` as that: `length` entries from `begin`.
Found or_cut_out(Found found, const Question& q, std::int64_t dim, std::int64_t length, std::int64_t begin,
                 std::int64_t step) {
  if (!found || !*found || q.layout.labels == nullptr) return found;
  const auto only = only_example(q.examples());
  if (!only) return found;
  Examples all = cut_out(q, dim, Examples(static_cast<std::size_t>(length), *only), begin, step);
  (*found)->otherwise = std::make_shared<const Layout>(layout_of(dim, std::move(all), q.batch));
  return found;
}

/// The output is entries begin, begin + step, .. of the input.
Found piece_of(const Question& q, std::int64_t given, std::int64_t begin, std::int64_t step) {
  const std::int64_t dim = from_front(given, q.input);
  if (q.input == q.output) return beside(q);
  if (q.layout.dim == dim) return with_examples(q, dim, cut_out(q, dim, q.examples(), begin, step));
  return or_cut_out(beside(q), q, dim, q.output[static_cast<std::size_t>(dim)], begin, step);
}

/// The input is a piece of the output.
Found piece_from(const Question& q, std::int64_t begin) {
  const auto length = static_cast<std::ptrdiff_t>(q.input[static_cast<std::size_t>(q.layout.dim)]);
  const Examples all = q.examples();
  return with_examples(q, q.layout.dim, Examples(all.begin() + begin, all.begin() + begin + length));
}

/// The entry `at` along a dimension, which is gone.
Found entry_of(const Question& q, std::int64_t given, std::int64_t at) {
  const std::int64_t gone = from_front(given, q.input);
  return or_cut_out(at_dim(q, q.layout.dim + (q.layout.dim >= gone ? 1 : 0)), q, gone, 1, at, 1);
}

/// Where a view into a base begins along each of the base's dimensions, and its own dimension there, if any.
struct ViewDim {
  std::int64_t begin;
  std::int64_t step = 1;
  std::optional<std::int64_t> dim = std::nullopt;
};

/// Nullopt for a base that is empty or not contiguous, or a view with two dimensions in one of the base's.
std::optional<ViewDim> view_along(const at::TensorGeometry& base, const at::TensorGeometry& view,
                                  std::int64_t dim) {
  if (!base.is_contiguous() || base.numel() == 0) return std::nullopt;
  const std::int64_t stride = base.stride(dim);
  const std::int64_t length = base.size(dim);
  ViewDim found{(view.storage_offset() - base.storage_offset()) / stride % length};
  for (std::int64_t d = 0; d < view.dim(); ++d) {
    const std::int64_t step = view.stride(d);
    if (view.size(d) == 1 || step % stride != 0 || step * (view.size(d) - 1) >= stride * length) continue;
    if (found.dim) return std::nullopt;
    found.dim = d;
    found.step = step / stride;
  }
  return found;
}

}  // namespace

Found slice(const Question& q) {
  const auto* node = static_cast<nodes::SliceBackward0*>(q.node);
  const std::int64_t length = q.input[static_cast<std::size_t>(from_front(node->dim, q.input))];
  const std::int64_t start = node->start ? node->start->expect_int() : 0;
  return piece_of(q, node->dim, std::clamp(start < 0 ? start + length : start, std::int64_t{0}, length),
                  node->step.expect_int());
}

template <class Split>
Found split(const Question& q) {
  const auto* node = static_cast<Split*>(q.node);
  std::int64_t begin = 0;
  if constexpr (requires { node->split_sizes; })
    for (std::size_t k = 0; k < q.piece; ++k) begin += node->split_sizes[k].expect_int();
  else
    begin = node->split_size.expect_int() * static_cast<std::int64_t>(q.piece);
  return piece_of(q, node->dim, begin, 1);
}
template Found split<nodes::SplitBackward0>(const Question&);
template Found split<nodes::UnsafeSplitBackward0>(const Question&);
template Found split<nodes::SplitWithSizesBackward0>(const Question&);

Found select(const Question& q) {
  const auto* node = static_cast<nodes::SelectBackward0*>(q.node);
  const std::int64_t length = q.input[static_cast<std::size_t>(from_front(node->dim, q.input))];
  const std::int64_t at = node->index.expect_int();
  return entry_of(q, node->dim, at < 0 ? at + length : at);
}

Found unbind(const Question& q) {
  return entry_of(q, static_cast<nodes::UnbindBackward0*>(q.node)->dim, static_cast<std::int64_t>(q.piece));
}

Found cat(const Question& q) {
  const auto* node = static_cast<nodes::CatBackward0*>(q.node);
  const std::int64_t dim = from_front(node->dim, q.output);
  if (q.layout.dim != dim || q.input.size() != q.output.size()) return beside(q);
  std::int64_t begin = 0;
  for (std::size_t k = 0; k < q.slot; ++k) {
    const auto& sizes = node->tensors_args_sizes_symint[k];
    // torch leaves out tensors of shape (0), whatever the others have.
    if (sizes.size() == q.output.size()) begin += sizes[static_cast<std::size_t>(dim)].expect_int();
  }
  return piece_from(q, begin);
}

Found stack(const Question& q) {
  const std::int64_t fresh = from_front(static_cast<nodes::StackBackward0*>(q.node)->dim, q.output);
  if (q.layout.dim == fresh) return whole(q, q.examples()[q.slot]);
  return at_dim(q, q.layout.dim - (q.layout.dim > fresh ? 1 : 0));
}

Found flip(const Question& q) {
  const auto& dims = static_cast<nodes::FlipBackward0*>(q.node)->dims;
  if (std::none_of(dims.begin(), dims.end(),
                   [&](std::int64_t dim) { return from_front(dim, q.input) == q.layout.dim; }))
    return beside(q);
  const Examples all = q.examples();
  return with_examples(q, q.layout.dim, Examples(all.rbegin(), all.rend()));
}

/// An operation in place on a view, seen from the view's base: the first input is the base as it was before,
/// the others are those of the operation on the view.
Found copy_slices(const Question& q) {
  if (q.slot == 0) return beside(q);
  const auto* node = static_cast<::torch::autograd::CopySlices*>(q.node);
  const auto view = view_along(node->base, node->view, q.layout.dim);
  if (!view || node->fn == nullptr) return kImpossible;
  const Examples all = q.examples();
  if (!view->dim) return whole(q, all[static_cast<std::size_t>(view->begin)]);
  Examples piece;
  for (std::int64_t i = 0; i < node->view.size(*view->dim); ++i)
    piece.push_back(all[static_cast<std::size_t>(view->begin + i * view->step)]);
  return place_in_input(node->fn.get(), q.slot, q.input, node->view.sizes(),
                        layout_of(*view->dim, std::move(piece), q.batch), q.batch);
}

}  // namespace cdgrab::torch
