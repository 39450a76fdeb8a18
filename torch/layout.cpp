// SPDX-License-Identifier: Apache-2.0
#include "layout.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "question.hpp"

namespace cdgrab::torch {

std::int64_t product(Shape shape, std::size_t begin) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(begin), shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

namespace {

bool fits(Shape shape, const Layout& layout, std::int64_t batch) {
  const auto dim = static_cast<std::size_t>(layout.dim);
  const std::int64_t period = layout.rows(batch) * layout.inner;
  return dim < shape.size() && shape[dim] > 0 && period > 0 && shape[dim] % period == 0;
}

/// Elementwise with broadcasting: dimensions count from the right.
Found elementwise(const Question& q) {
  const auto shift = static_cast<std::int64_t>(q.output.size()) - static_cast<std::int64_t>(q.input.size());
  const std::int64_t dim = q.layout.dim - shift;
  if (dim < 0) return kNoBatch;
  const auto at = static_cast<std::size_t>(dim);
  if (q.input[at] == q.output[static_cast<std::size_t>(q.layout.dim)]) return at_dim(q, dim);
  return q.input[at] == 1 ? kNoBatch : kImpossible;
}

/// A list of examples along a dimension of the output that is several of the input.
Found view_of_list(const Question& q) {
  const std::int64_t below = product(q.output, static_cast<std::size_t>(q.layout.dim) + 1);
  const std::int64_t length = q.output[static_cast<std::size_t>(q.layout.dim)];
  for (std::size_t end = q.input.size(); end > 0; --end) {
    if (product(q.input, end) != below) continue;
    for (std::size_t begin = end; begin-- > 0;) {
      const Shape dims = q.input.slice(begin, end - begin);
      if (product(dims, 0) != length) continue;
      if (auto found = along_one(q.examples(), dims))
        return with_examples(q, static_cast<std::int64_t>(begin + found->first), std::move(found->second));
    }
  }
  return kImpossible;
}

/// The flat order of the entries is kept, so the batch is found again by its stride in it.
Found view(const Question& q) {
  // What is all of one example may have lost the dimension that said so.
  if (q.layout.labels != nullptr && q.input.size() > q.output.size())
    if (const auto only = only_example(q.examples())) return whole(q, *only);
  const std::int64_t stride = q.layout.inner * product(q.output, static_cast<std::size_t>(q.layout.dim) + 1);
  for (std::size_t dim = 0; dim < q.input.size(); ++dim) {
    const std::int64_t below = product(q.input, dim + 1);
    if (below == 0 || stride % below != 0) continue;
    Layout layout{static_cast<std::int64_t>(dim), stride / below, q.layout.labels};
    if (fits(q.input, layout, q.batch)) return Found(Place(std::move(layout)));
  }
  return q.layout.labels == nullptr ? kImpossible : view_of_list(q);
}

Found swap_dims(const Question& q, std::int64_t a, std::int64_t b) {
  const auto rank = static_cast<std::int64_t>(q.output.size());
  a = a < 0 ? a + rank : a;
  b = b < 0 ? b + rank : b;
  if (q.layout.dim == a) return at_dim(q, b);
  if (q.layout.dim == b) return at_dim(q, a);
  return at_dim(q, q.layout.dim);
}

template <class Transpose>
Found transpose(const Question& q) {
  const auto* node = static_cast<Transpose*>(q.node);
  return swap_dims(q, node->dim0, node->dim1);
}

Found matrix_transpose(const Question& q) { return swap_dims(q, 0, 1); }

Found permute(const Question& q) {
  const auto& dims = static_cast<nodes::PermuteBackward0*>(q.node)->dims;
  const std::int64_t from = dims[static_cast<std::size_t>(q.layout.dim)];
  return at_dim(q, from < 0 ? from + static_cast<std::int64_t>(dims.size()) : from);
}

/// out = a b for matrices a (slot `a`) and b (slot `a` + 1).
Found matrix_product(const Question& q, std::size_t a) {
  if (q.slot < a) return elementwise(q);  // the bias
  const bool rows = q.layout.dim == 0;
  const bool left = q.slot == a;
  if (rows != left) return kNoBatch;
  return at_dim(q, rows ? 0 : 1);
}
Found addmm(const Question& q) { return matrix_product(q, 1); }
Found mm(const Question& q) { return matrix_product(q, 0); }

Found linear(const Question& q) {
  if (q.slot > 0) return kNoBatch;
  return q.layout.dim + 1 < static_cast<std::int64_t>(q.output.size()) ? at_dim(q, q.layout.dim)
                                                                       : kImpossible;
}

Found batched_product(const Question& q, std::size_t a) {
  if (q.slot < a) return elementwise(q);
  const bool left = q.slot == a;
  if (q.layout.dim == 0) return at_dim(q, 0);
  if (q.layout.dim == 1) return left ? at_dim(q, 1) : kNoBatch;
  return left ? kNoBatch : at_dim(q, 2);
}
Found bmm(const Question& q) { return batched_product(q, 0); }
Found baddbmm(const Question& q) { return batched_product(q, 1); }

/// A matrix times a vector.
Found matrix_vector(const Question& q) { return q.slot == 0 ? at_dim(q, 0) : kNoBatch; }

/// Convolutions, pooling, padding, group norm: examples along dimension 0, the first input carries them.
Found examples_first(const Question& q) {
  if (q.layout.dim != 0) return kImpossible;
  return q.slot > 0 ? kNoBatch : at_dim(q, 0);
}

/// Examples may also be among the channels, as instance norm has them: each channel is on its own.
Found batch_norm(const Question& q) {
  if (q.layout.dim != 1) return examples_first(q);
  return at_dim(q, q.slot == 0 ? 1 : 0);
}

/// Dimensions that are padded, which the batch's is not, are the last ones.
Found padded(const Question& q) {
  const auto dim = static_cast<std::size_t>(q.layout.dim);
  return q.input[dim] == q.output[dim] ? at_dim(q, q.layout.dim) : kImpossible;
}

/// A dimension of the output is (copies, the input's own).
Found repeat(const Question& q) {
  const auto shift = static_cast<std::int64_t>(q.output.size()) - static_cast<std::int64_t>(q.input.size());
  const std::int64_t dim = q.layout.dim - shift;
  const std::int64_t own = dim < 0 ? 1 : q.input[static_cast<std::size_t>(dim)];
  const std::int64_t rows = q.layout.rows(q.batch);
  if (own > 0 && rows > 0 && own % (rows * q.layout.inner) == 0) return at_dim(q, dim);
  return own > 0 && q.layout.inner % own == 0 ? kNoBatch : kImpossible;
}

/// The last `count` dimensions are normalised together.
Found normalised(const Question& q, std::size_t count) {
  if (q.slot > 0) return kNoBatch;
  return q.layout.dim + static_cast<std::int64_t>(count) < static_cast<std::int64_t>(q.output.size())
             ? at_dim(q, q.layout.dim)
             : kImpossible;
}
Found layer_norm(const Question& q) {
  return normalised(q, static_cast<nodes::NativeLayerNormBackward0*>(q.node)->normalized_shape.size());
}
Found rms_norm(const Question& q) {
  return normalised(q, static_cast<nodes::FusedRmsNormBackward0*>(q.node)->normalized_shape.size());
}

Found along(const Question& q, std::int64_t mixed) {
  const auto rank = static_cast<std::int64_t>(q.output.size());
  return q.layout.dim == (mixed < 0 ? mixed + rank : mixed) ? kImpossible : at_dim(q, q.layout.dim);
}
Found softmax(const Question& q) { return along(q, static_cast<nodes::SoftmaxBackward0*>(q.node)->dim); }
Found log_softmax(const Question& q) {
  return along(q, static_cast<nodes::LogSoftmaxBackward0*>(q.node)->dim);
}

/// Queries, keys and values are (B, heads, T, E): only the first two dimensions keep examples apart.
Found attention(const Question& q) {
  return q.slot < 3 && q.layout.dim < 2 ? at_dim(q, q.layout.dim) : kImpossible;
}

Found glu(const Question& q) { return along(q, static_cast<nodes::GluBackward0*>(q.node)->dim); }
Found cumsum(const Question& q) { return along(q, static_cast<nodes::CumsumBackward0*>(q.node)->dim); }
Found embedding(const Question& /*q*/) { return kNoBatch; }

/// (T, B, ..) and, for the states to begin with, (B, H); weights between.
Found recurrent(const Question& q) {
  if (q.layout.dim != 1) return kImpossible;
  if (q.slot > 0 && q.slot < 5) return kNoBatch;
  return at_dim(q, static_cast<std::int64_t>(q.input.size()) - 2);
}

/// The loss of each example or position from its class scores, which stand along dimension 1.
Found class_scores(const Question& q) {
  if (q.slot > 0) return kNoBatch;
  return at_dim(q, q.layout.dim == 0 ? 0 : q.layout.dim + 1);
}

at::IntArrayRef list_of(const std::int64_t& dim) { return dim; }
at::IntArrayRef list_of(const std::vector<std::int64_t>& dims) { return dims; }
at::IntArrayRef list_of(const c10::OptionalArray<std::int64_t>& dims) {
  return dims.list ? at::IntArrayRef(*dims.list) : at::IntArrayRef();
}

/// Sums, means and the like over some dimensions: those that are left, in their order.
template <class Reduction>
Found reduced(const Question& q) {
  const auto* node = static_cast<Reduction*>(q.node);
  const bool keepdim = node->keepdim;
  std::unordered_set<std::int64_t> gone;
  const auto rank = static_cast<std::int64_t>(q.input.size());
  for (const std::int64_t d : list_of(node->dim)) gone.insert(d < 0 ? d + rank : d);
  std::int64_t left = 0;
  for (std::int64_t dim = 0; dim < rank; ++dim) {
    const bool here = keepdim || !gone.contains(dim);
    if (here && left == q.layout.dim) return gone.contains(dim) ? kImpossible : at_dim(q, dim);
    left += here ? 1 : 0;
  }
  return kImpossible;
}
/// A node that is not in the table: elementwise if the shapes say nothing else, and neither does its name.
Found by_shape(const Question& q) {
  const std::string name = q.node->name();
  for (const char* mixes :
       {"AsStrided", "Cum", "Fft", "Flip", "Gather", "Index", "Linalg", "Mask", "Permut", "Renorm", "Roll",
        "Rot90", "Scatter", "Sort", "Take", "Topk", "Tril", "Triu", "Unfold"})
    if (name.find(mixes) != std::string::npos && name != "MaskedFillBackward0") return kImpossible;
  return q.input == q.output ? at_dim(q, q.layout.dim) : kImpossible;
}

/// Everything below the edge is made of leaves: what is the same for all examples, as parameters are.
bool is_of_leaves(Node* node, std::size_t slot) {
  std::vector<Node*> open = {node->next_edge(slot).function.get()};
  std::unordered_set<Node*> seen;
  while (!open.empty()) {
    Node* below = open.back();
    open.pop_back();
    if (!seen.insert(below).second || as_leaf(below) != nullptr) continue;
    // A lookup, or a tensor without a gradient: examples may be behind it.
    const std::string name = below->name();
    if (name.starts_with("Embedding") || name.starts_with("Index")) return false;
    for (const auto& edge : below->next_edges()) {
      if (edge.function == nullptr) return false;
      open.push_back(edge.function.get());
    }
  }
  return true;
}

/// A node that is not in the table and takes parameters. It is applied to one example at a time, which shows
/// whether this is right: examples are where they are in the output, or in the one dimension of that length.
Found by_length(const Question& q) {
  if (is_of_leaves(q.node, q.slot)) return kNoBatch;
  const std::int64_t length = q.output[static_cast<std::size_t>(q.layout.dim)];
  const auto dim = static_cast<std::size_t>(q.layout.dim);
  if (dim < q.input.size() && q.input[dim] == length) return at_dim(q, q.layout.dim);
  const auto only = std::find(q.input.begin(), q.input.end(), length);
  if (std::count(q.input.begin(), q.input.end(), length) != 1) return kImpossible;
  return at_dim(q, only - q.input.begin());
}

bool takes_leaves(Node* node) {
  for (std::size_t slot = 0; slot < node->num_outputs(); ++slot)
    if (node->next_edge(slot).function != nullptr && is_of_leaves(node, slot)) return true;
  return false;
}

Found unknown(const Question& q) {
  const bool one_of_one = q.node->num_outputs() == 1 && q.input == q.output;
  return !one_of_one && !is_compiled(q.node) && takes_leaves(q.node) ? by_length(q) : by_shape(q);
}

const std::unordered_map<std::string, Answer>& answers() {
  static const std::unordered_map<std::string, Answer> kAnswers = {
      {"AddBackward0", elementwise},
      {"SubBackward0", elementwise},
      {"MulBackward0", elementwise},
      {"DivBackward0", elementwise},
      {"AddcmulBackward0", elementwise},
      {"WhereBackward0", elementwise},
      {"MaximumBackward0", elementwise},
      {"MinimumBackward0", elementwise},
      {"PowBackward1", elementwise},
      {"LerpBackward0", elementwise},
      {"PreluKernelBackward0", elementwise},
      {"MseLossBackward0", elementwise},
      {"ExpandBackward0", elementwise},
      {"ViewBackward0", view},
      {"UnsafeViewBackward0", view},
      {"ReshapeAliasBackward0", view},
      {"SqueezeBackward0", view},
      {"SqueezeBackward1", view},
      {"SqueezeBackward2", view},
      {"UnsqueezeBackward0", view},
      {"TransposeBackward0", transpose<nodes::TransposeBackward0>},
      {"TransposeBackward1", transpose<nodes::TransposeBackward1>},
      {"TBackward0", matrix_transpose},
      {"PermuteBackward0", permute},
      {"AddmmBackward0", addmm},
      {"MmBackward0", mm},
      {"MvBackward0", matrix_vector},
      {"LinearBackward0", linear},
      {"BmmBackward0", bmm},
      {"BaddbmmBackward0", baddbmm},
      {"ConvolutionBackward0", examples_first},
      {"NativeBatchNormBackward0", batch_norm},
      {"NativeGroupNormBackward0", examples_first},
      {"MaxPool2DWithIndicesBackward0", examples_first},
      {"AvgPool2DBackward0", examples_first},
      {"AvgPool3DBackward0", examples_first},
      {"AdaptiveAvgPool2DBackward0", examples_first},
      {"AdaptiveAvgPool3DBackward0", examples_first},
      {"AdaptiveMaxPool2DBackward0", examples_first},
      {"AdaptiveMaxPool3DBackward0", examples_first},
      {"MaxPool3DWithIndicesBackward0", examples_first},
      {"PixelShuffleBackward0", examples_first},
      {"ReflectionPad1DBackward0", examples_first},
      {"ReflectionPad2DBackward0", examples_first},
      {"ReplicationPad1DBackward0", examples_first},
      {"ReplicationPad2DBackward0", examples_first},
      {"UpsampleBilinear2DBackward0", examples_first},
      {"UpsampleNearest2DBackward0", examples_first},
      {"ConstantPadNdBackward0", padded},
      {"NativeLayerNormBackward0", layer_norm},
      {"FusedRmsNormBackward0", rms_norm},
      {"SoftmaxBackward0", softmax},
      {"LogSoftmaxBackward0", log_softmax},
      {"ScaledDotProductFlashAttentionForCpuBackward0", attention},
      {"ScaledDotProductEfficientAttentionBackward0", attention},
      {"ScaledDotProductFlashAttentionBackward0", attention},
      {"MkldnnRnnLayerBackward0", recurrent},
      {"EmbeddingBackward0", embedding},
      {"NllLossBackward0", class_scores},
      {"NllLoss2DBackward0", class_scores},
      {"SplitBackward0", split<nodes::SplitBackward0>},
      {"UnsafeSplitBackward0", split<nodes::UnsafeSplitBackward0>},
      {"SplitWithSizesBackward0", split<nodes::SplitWithSizesBackward0>},
      {"SliceBackward0", slice},
      {"SelectBackward0", select},
      {"UnbindBackward0", unbind},
      {"CatBackward0", cat},
      {"StackBackward0", stack},
      {"FlipBackward0", flip},
      {"torch::autograd::CopySlices", copy_slices},
      {"torch::autograd::CopyBackwards", elementwise},
      {"IndexBackward0", index},
      {"IndexPutBackward0", index_put},
      {"IndexSelectBackward0", index_select},
      {"GatherBackward0", gather},
      {"IndexAddBackward0", put_by_index<nodes::IndexAddBackward0>},
      {"IndexCopyBackward0", put_by_index<nodes::IndexCopyBackward0>},
      {"IndexReduceBackward0", put_by_index<nodes::IndexReduceBackward0>},
      {"ScatterBackward0", put_by_index<nodes::ScatterBackward0>},
      {"ScatterAddBackward0", put_by_index<nodes::ScatterAddBackward0>},
      {"ScatterReduceBackward0", put_by_index<nodes::ScatterReduceBackward0>},
      {"SegmentReduceBackward0", segment_reduce},
      {"PackPaddedSequenceBackward0", pack_padded_sequence},
      {"RepeatBackward0", repeat},
      {"GluBackward0", glu},
      {"CumsumBackward0", cumsum},
      {"SumBackward1", reduced<nodes::SumBackward1>},
      {"MeanBackward1", reduced<nodes::MeanBackward1>},
      {"MaxBackward0", reduced<nodes::MaxBackward0>},
      {"MinBackward0", reduced<nodes::MinBackward0>},
      {"AmaxBackward0", reduced<nodes::AmaxBackward0>},
      {"AminBackward0", reduced<nodes::AminBackward0>},
      {"VarBackward0", reduced<nodes::VarBackward0>},
      {"StdBackward0", reduced<nodes::StdBackward0>},
      {"NormBackward1", reduced<nodes::NormBackward1>},
      {"LinalgVectorNormBackward0", reduced<nodes::LinalgVectorNormBackward0>},
      {"LogsumexpBackward0", reduced<nodes::LogsumexpBackward0>},
  };
  return kAnswers;
}

}  // namespace

std::vector<Layout> possible_layouts(at::IntArrayRef shape, std::int64_t batch) {
  std::vector<Layout> all;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] == 0 || shape[dim] % batch != 0) continue;
    const std::int64_t shared = shape[dim] / batch;
    all.push_back({static_cast<std::int64_t>(dim), shared});
    if (shared > 1) all.push_back({static_cast<std::int64_t>(dim), 1});
  }
  return all;
}

std::optional<Place> place_in_input(Node* node, std::size_t slot, at::IntArrayRef input,
                                    at::IntArrayRef output, const Layout& layout, std::int64_t batch,
                                    std::size_t piece) {
  const auto found = answers().find(node->name());
  const Answer answer = found == answers().end() ? unknown : found->second;
  return answer({node, slot, input, output, layout, batch, piece});
}

/// The last states of a recurrent layer are (B, H), its output is (T, B, H).
Layout in_first_output(Node* node, std::size_t output, const Layout& layout) {
  const bool state = output > 0 && node->name() == "MkldnnRnnLayerBackward0";
  return {layout.dim + (state ? 1 : 0), layout.inner, layout.labels};
}

Layout in_output(Node* node, std::size_t output, const Layout& layout) {
  const bool state = output > 0 && node->name() == "MkldnnRnnLayerBackward0";
  return {layout.dim - (state ? 1 : 0), layout.inner, layout.labels};
}

bool is_compiled(Node* node) { return node->name().find("CompiledFunction") != std::string::npos; }

bool gives_pieces(Node* node) {
  static const std::unordered_set<std::string> kNames = {"SplitBackward0", "UnsafeSplitBackward0",
                                                         "SplitWithSizesBackward0", "UnbindBackward0"};
  return node->num_inputs() > 1 && kNames.contains(node->name());
}

bool rearranges(Node* node) {
  static const std::unordered_set<std::string> kNames = {
      "TBackward0",          "TransposeBackward0",    "PermuteBackward0", "ViewBackward0",
      "UnsafeViewBackward0", "ReshapeAliasBackward0", "ExpandBackward0",  "ToCopyBackward0",
      "UnsqueezeBackward0",  "SqueezeBackward0",      "SqueezeBackward1", "SqueezeBackward2",
      "SliceBackward0",      "SelectBackward0",       "CloneBackward0",   "AliasBackward0",
      "LiftFreshBackward0",
  };
  return kNames.contains(node->name());
}

/// One entry of the first dimension each, in their order.
static bool has_one_entry_each(const Tensor& tensor, const Layout& layout, std::int64_t batch) {
  return layout.labels == nullptr && layout.dim == 0 && layout.inner == 1 && tensor.size(0) == batch;
}

Tensor batch_first(const Tensor& tensor, const Layout& layout, std::int64_t batch) {
  if (has_one_entry_each(tensor, layout, batch)) return tensor.unsqueeze(1);
  const auto dim = layout.dim;
  if (layout.labels != nullptr)
    return padded_by(groups_of(examples_along(layout, tensor.size(dim), batch), batch, tensor), tensor, dim);
  const std::int64_t outer = tensor.size(dim) / (batch * layout.inner);
  std::vector<std::int64_t> split(tensor.sizes().begin(), tensor.sizes().end());
  split[static_cast<std::size_t>(dim)] = outer;
  split.insert(split.begin() + dim + 1, {batch, layout.inner});
  std::vector<std::int64_t> order = {dim + 1, dim, dim + 2};
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(split.size()); ++d)
    if (d < dim || d > dim + 2) order.push_back(d);
  const Tensor moved = tensor.reshape(split).permute(order);
  std::vector<std::int64_t> shape = {batch, outer * layout.inner};
  shape.insert(shape.end(), moved.sizes().begin() + 3, moved.sizes().end());
  return moved.reshape(shape);
}

Tensor sum_by_example(const Tensor& tensor, const Layout& layout, std::int64_t batch) {
  if (has_one_entry_each(tensor, layout, batch)) return tensor;
  if (layout.labels == nullptr) {
    const Tensor by_example = batch_first(tensor, layout, batch);
    return by_example.size(1) == 1 ? by_example.squeeze(1) : by_example.sum(1);
  }
  const auto groups = groups_of(examples_along(layout, tensor.size(layout.dim), batch), batch, tensor);
  Tensor entries = tensor.movedim(layout.dim, 0).index_select(0, groups.order);
  if (entries.scalar_type() != at::kDouble) entries = entries.to(at::kFloat);
  const Tensor counts = at::tensor(groups.counts, at::kLong).to(tensor.device());
  std::vector<std::int64_t> shape = entries.sizes().vec();
  shape[0] = batch;
  return at::zeros(shape, entries.options()).index_add_(0, at::repeat_interleave(counts), entries);
}

}  // namespace cdgrab::torch
