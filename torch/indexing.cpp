// SPDX-License-Identifier: Apache-2.0
// Following the batch through nodes that read or write entries by an index: the index says whose they are.
#include <algorithm>

#include "question.hpp"

namespace cdgrab::torch {
namespace {

/// A tensor of integers that a node has saved.
Examples integers(const Tensor& tensor) {
  const Tensor list = tensor.to(at::kCPU, at::kLong).contiguous();
  const auto* first = list.const_data_ptr<std::int64_t>();
  return {first, first + list.numel()};
}

std::int64_t from_end(std::int64_t entry, std::int64_t length) { return entry < 0 ? entry + length : entry; }

/// A parameter is at the end of the edge, so that the index looks up what is the same for all examples.
bool is_table(const Question& q) {
  Node* below = q.node->next_edge(q.slot).function.get();
  while (below != nullptr && rearranges(below)) below = below->next_edge(0).function.get();
  return as_leaf(below) != nullptr;
}

/// Of x[.., i, j, ..]: dimensions [first, first + count) of x are read at the places `flat`, counted through
/// all of them, of shape `shape`.
struct Indexed {
  std::size_t first = 0;
  std::size_t count = 0;
  Examples flat;
  std::vector<std::int64_t> shape;
};

/// Nullopt where the indexed dimensions are not next to each other.
std::optional<Indexed> indexed_dims(std::vector<::torch::autograd::SavedVariable>& indices, Node* node,
                                    Shape self) {
  std::vector<Tensor> by_dim;  // undefined for a dimension that is taken whole
  for (auto& variable : indices) {
    const Tensor one = saved(variable, node);
    const bool mask = one.defined() && (one.scalar_type() == at::kBool || one.scalar_type() == at::kByte);
    if (!mask)
      by_dim.push_back(one);
    else
      for (const Tensor& places : one.nonzero().unbind(1)) by_dim.push_back(places);
  }
  Indexed found;
  std::vector<Tensor> given;
  for (std::size_t dim = 0; dim < by_dim.size(); ++dim) {
    if (!by_dim[dim].defined()) continue;
    if (given.empty()) found.first = dim;
    if (found.first + given.size() != dim) return std::nullopt;
    given.push_back(by_dim[dim]);
  }
  if (given.empty()) return std::nullopt;
  found.count = given.size();
  given = at::broadcast_tensors(given);
  found.shape = given.front().sizes().vec();
  found.flat.resize(static_cast<std::size_t>(given.front().numel()), 0);
  for (std::size_t k = 0; k < given.size(); ++k) {
    const std::int64_t length = self[found.first + k];
    const Examples places = integers(given[k]);
    for (std::size_t i = 0; i < places.size(); ++i)
      found.flat[i] = found.flat[i] * length + from_end(places[i], length);
  }
  return found;
}

/// The examples of the entries of `shape`, in their flat order, when those along its dimension `dim` are
/// known.
Examples spread(const Examples& along, Shape shape, std::size_t dim) {
  Examples all(static_cast<std::size_t>(product(shape, 0)));
  const std::int64_t below = product(shape, dim + 1);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = along[static_cast<std::size_t>(static_cast<std::int64_t>(i) / below % shape[dim])];
  return all;
}

/// `flat`: of the dimensions of the input that begin at `first` and have this shape.
Found at_one_of(const Question& q, std::size_t first, const Examples& flat, Shape shape) {
  auto found = along_one(flat, shape);
  if (!found) return kImpossible;
  return with_examples(q, static_cast<std::int64_t>(first + found->first), std::move(found->second));
}

/// Entry i of the output was read at index[i] of the input, along one dimension.
Found read_at(const Question& q, std::int64_t dim, const Examples& index, const Examples& examples) {
  const std::int64_t length = q.input[static_cast<std::size_t>(dim)];
  Examples all(static_cast<std::size_t>(length), kNobody);
  for (std::size_t i = 0; i < index.size(); ++i)
    if (!assign(all[static_cast<std::size_t>(from_end(index[i], length))], examples[i])) return kImpossible;
  return with_examples(q, dim, std::move(all));
}

}  // namespace

Found index(const Question& q) {
  if (is_table(q)) return kNoBatch;
  auto* node = static_cast<nodes::IndexBackward0*>(q.node);
  const auto found = indexed_dims(node->indices_, q.node, q.input);
  if (!found) return kImpossible;
  const auto dim = static_cast<std::size_t>(q.layout.dim);
  const std::size_t end = found->first + found->shape.size();  // of what was indexed, in the output
  if (dim < found->first) return at_dim(q, q.layout.dim);
  if (dim >= end) return at_dim(q, static_cast<std::int64_t>(dim - end + found->first + found->count));
  const Shape dims = q.input.slice(found->first, found->count);
  Examples flat(static_cast<std::size_t>(product(dims, 0)), kNobody);
  const Examples read = spread(q.examples(), found->shape, dim - found->first);
  for (std::size_t i = 0; i < read.size(); ++i)
    if (!assign(flat[static_cast<std::size_t>(found->flat[i])], read[i])) return kImpossible;
  return at_one_of(q, found->first, flat, dims);
}

/// Slot 0 is what was there before, slot 1 what is put there, without dimensions of 1 in front.
Found index_put(const Question& q) {
  if (q.slot == 0) return at_dim(q, q.layout.dim);
  if (is_table(q)) return kNoBatch;
  auto* node = static_cast<nodes::IndexPutBackward0*>(q.node);
  const auto found = indexed_dims(node->indices_, q.node, q.output);
  if (!found) return kImpossible;
  const std::size_t end = found->first + found->count;
  std::vector<std::int64_t> values = q.output.slice(0, found->first).vec();
  values.insert(values.end(), found->shape.begin(), found->shape.end());
  values.insert(values.end(), q.output.begin() + static_cast<std::ptrdiff_t>(end), q.output.end());
  const auto dim = static_cast<std::size_t>(q.layout.dim);
  const bool beside = dim < found->first || dim >= end;
  if (beside && q.input != Shape(values)) return kImpossible;
  if (beside)
    return at_dim(q, static_cast<std::int64_t>(
                         dim < found->first ? dim : dim - end + found->first + found->shape.size()));
  const Shape dims = q.output.slice(found->first, found->count);
  const Examples all = spread(q.examples(), dims, dim - found->first);
  Examples put;
  for (const std::int64_t place : found->flat) put.push_back(all[static_cast<std::size_t>(place)]);
  if (put.size() == 1) return whole(q, put.front());
  if (q.input != Shape(values)) return kImpossible;
  return at_one_of(q, found->first, put, found->shape);
}

Found index_select(const Question& q) {
  if (is_table(q)) return kNoBatch;
  auto* node = static_cast<nodes::IndexSelectBackward0*>(q.node);
  const std::int64_t dim = from_front(node->dim, q.input);
  if (q.layout.dim != dim) return at_dim(q, q.layout.dim);
  return read_at(q, dim, integers(saved(node->index_, q.node)), q.examples());
}

/// In the other dimensions the index may be shorter.
Found gather(const Question& q) {
  auto* node = static_cast<nodes::GatherBackward0*>(q.node);
  const std::int64_t dim = from_front(node->dim, q.input);
  const auto own = static_cast<std::size_t>(q.layout.dim);
  if (q.layout.dim != dim) return q.input[own] == q.output[own] ? at_dim(q, q.layout.dim) : kImpossible;
  return read_at(q, dim, integers(saved(node->index_, q.node)), spread(q.examples(), q.output, own));
}

/// Slot 0 is what was there before, slot 1 what is put or added there: at index[i] along one dimension, or,
/// for the kind that scatters, at an index of its own for every entry.
template <class Put>
Found put_by_index(const Question& q) {
  if (q.slot == 0) return at_dim(q, q.layout.dim);
  auto* node = static_cast<Put*>(q.node);
  const std::int64_t dim = from_front(node->dim, q.output);
  const auto own = static_cast<std::size_t>(q.layout.dim);
  const Tensor index = saved(node->index_, q.node);
  const bool scatters = index.dim() == static_cast<std::int64_t>(q.output.size()) && index.dim() > 1;
  if (q.layout.dim != dim) {
    const bool all = !scatters || index.size(q.layout.dim) == q.input[own];
    return all && q.input[own] == q.output[own] ? at_dim(q, q.layout.dim) : kImpossible;
  }
  const Examples examples = q.examples();
  Examples put;
  for (const std::int64_t place : integers(index))
    put.push_back(examples[static_cast<std::size_t>(from_end(place, q.output[own]))]);
  if (!scatters) {
    put.resize(static_cast<std::size_t>(q.input[own]), kNobody);
    return with_examples(q, dim, std::move(put));
  }
  auto found = along_one(put, index.sizes());
  if (!found) return kImpossible;
  // What is put may have more entries than the index.
  found->second.resize(static_cast<std::size_t>(q.input[found->first]), kNobody);
  return with_examples(q, static_cast<std::int64_t>(found->first), std::move(found->second));
}
template Found put_by_index<nodes::IndexAddBackward0>(const Question&);
template Found put_by_index<nodes::IndexCopyBackward0>(const Question&);
template Found put_by_index<nodes::IndexReduceBackward0>(const Question&);
template Found put_by_index<nodes::ScatterBackward0>(const Question&);
template Found put_by_index<nodes::ScatterAddBackward0>(const Question&);
template Found put_by_index<nodes::ScatterReduceBackward0>(const Question&);

/// Each segment of the input has become an entry.
Found segment_reduce(const Question& q) {
  auto* node = static_cast<nodes::SegmentReduceBackward0*>(q.node);
  const std::int64_t axis = from_front(node->axis, q.output);
  if (q.layout.dim != axis) return at_dim(q, q.layout.dim);
  const Tensor lengths = saved(node->lengths_, q.node);
  if (!lengths.defined() || lengths.dim() != 1) return kImpossible;
  Examples all;
  const Examples examples = q.examples();
  const Examples counts = integers(lengths);
  for (std::size_t k = 0; k < counts.size(); ++k)
    all.insert(all.end(), static_cast<std::size_t>(counts[k]), examples[k]);
  all.resize(static_cast<std::size_t>(q.input[static_cast<std::size_t>(axis)]), kNobody);
  return with_examples(q, axis, std::move(all));
}

/// Steps one after the other, of as many sequences as have not ended.
Found pack_padded_sequence(const Question& q) {
  auto* node = static_cast<nodes::PackPaddedSequenceBackward0*>(q.node);
  if (q.layout.dim > 0) return at_dim(q, q.layout.dim + 1);
  Examples sequences;
  for (const std::int64_t size : integers(saved(node->result1_, q.node)))
    for (std::int64_t b = 0; b < size; ++b) sequences.push_back(b);
  return read_at(q, node->batch_first ? 0 : 1, sequences, q.examples());
}

}  // namespace cdgrab::torch
