// SPDX-License-Identifier: Apache-2.0
#include "fallback.hpp"

#include <fmt/format.h>

#include "cdgrab/error.hpp"
#include "labels.hpp"

namespace cdgrab::torch {
namespace {

/// (.., outer, batch, inner, ..): the batch in a dimension of its own, at layout.dim + 1.
Tensor with_batch_apart(const Tensor& tensor, const Layout& layout, std::int64_t batch) {
  return tensor.unflatten(layout.dim,
                          {tensor.size(layout.dim) / (batch * layout.inner), batch, layout.inner});
}

/// Everything but one example's is zero.
Tensor only_of(const Tensor& gradient, const Layout& layout, std::int64_t batch, std::int64_t example) {
  if (layout.labels != nullptr) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(gradient.dim()), 1);
    shape[static_cast<std::size_t>(layout.dim)] = -1;
    const Tensor whose = at::tensor(examples_along(layout, gradient.size(layout.dim), batch), at::kLong);
    return at::where(whose.to(gradient.device()).eq(example).view(shape), gradient, 0);
  }
  const Tensor apart = with_batch_apart(gradient, layout, batch);
  Tensor masked = at::zeros_like(apart, at::MemoryFormat::Contiguous);
  masked.select(layout.dim + 1, example).copy_(apart.select(layout.dim + 1, example));
  return masked.view(gradient.sizes());
}

/// Whatever less the step was computed in.
at::ScalarType type_of_rows(const Moment& moment) {
  return moment.any_gradient().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The edges to what has examples in it, and where.
std::vector<std::pair<std::size_t, Layout>> data_edges(const Moment& moment) {
  std::vector<std::pair<std::size_t, Layout>> all;
  for (std::size_t slot = 0; slot < moment.node->num_outputs(); ++slot) {
    if (moment.node->next_edge(slot).function == nullptr) continue;
    const auto place = place_in_input(moment.node, slot, edge_shape(moment.node, slot),
                                      output_shape(moment.node), moment.layout, moment.batch);
    if (place && *place) all.emplace_back(slot, **place);
  }
  return all;
}

/// The gradients of all outputs, one example's only.
variable_list arriving_for(const Moment& moment, std::int64_t example) {
  variable_list arriving(moment.gradients.size());
  for (std::size_t k = 0; k < arriving.size(); ++k)
    if (moment.gradients[k].defined())
      arriving[k] =
          only_of(moment.gradients[k], in_output(moment.node, k, moment.layout), moment.batch, example);
  return arriving;
}

/// As autograd would accumulate it: strided, and summed over what was broadcast.
Tensor dense_of(const Tensor& sent, at::IntArrayRef shape) {
  return at::sum_to(sent.layout() == at::kStrided ? sent : sent.to_dense(), shape);
}

void require_apart(const Moment& moment, const Tensor& sent, const Layout& layout, std::int64_t example) {
  constexpr double kRounding = 1e-6;
  const Tensor largest = batch_first(sent, layout, moment.batch).flatten(1).abs().amax(1).to(at::kDouble);
  const double own = largest[example].item<double>();
  largest[example] = 0.0;
  if (!(largest.max().item<double>() > kRounding * own)) return;  // what is not finite proves nothing
  throw UserError(
      "observe", fmt::format("{} sends gradients of one example to the place of another: the examples cannot "
                             "be told apart below it. Leave the parameters below it out "
                             "(ObserveOptions::parameters), or order microbatches (unit=)",
                             moment.node->name()));
}

}  // namespace

std::size_t bytes_by_example(const Moment& moment, const std::vector<std::size_t>& slots) {
  std::int64_t entries = 0;
  for (const std::size_t slot : slots) entries += c10::multiply_integers(edge_shape(moment.node, slot));
  return static_cast<std::size_t>(entries * moment.batch) * c10::elementSize(type_of_rows(moment));
}

std::vector<Contribution> apply_by_example(const Moment& moment, const std::vector<std::size_t>& slots) {
  keep_what_was_saved(moment.node);
  const auto data = data_edges(moment);
  std::vector<Tensor> rows;
  for (const std::size_t slot : slots)
    rows.push_back(at::zeros({moment.batch, c10::multiply_integers(edge_shape(moment.node, slot))},
                             moment.any_gradient().options().dtype(type_of_rows(moment))));
  for (std::int64_t example = 0; example < moment.batch; ++example) {
    const variable_list sent = (*moment.node)(arriving_for(moment, example));
    for (const auto& [slot, layout] : data)
      if (sent.at(slot).defined()) require_apart(moment, sent[slot], layout, example);
    for (std::size_t k = 0; k < slots.size(); ++k)
      if (const Tensor& one = sent.at(slots[k]); one.defined())
        rows[k][example].copy_(dense_of(one, edge_shape(moment.node, slots[k])).reshape({-1}));
  }
  std::vector<Contribution> all;
  for (Tensor& of_edge : rows) all.push_back(Contribution::of_rows(std::move(of_edge)));
  return all;
}

}  // namespace cdgrab::torch
