// SPDX-License-Identifier: Apache-2.0
// Fused recurrent layers. They keep no gates, so these are computed again from the layer's input and output;
// the gradients that arrive at the gates then make every parameter's.
#include "cdgrab/error.hpp"
#include "products.hpp"
#include "rules.hpp"

namespace cdgrab::torch {
namespace {

using Lstm = nodes::MkldnnRnnLayerBackward0;

/// All of (T, B, ..), in the sequence in which steps were made.
struct Steps {
  Tensor inputs;
  Tensor states;                  ///< before each step
  Tensor in, forget, fresh, out;  ///< gates
  std::vector<Tensor> cells;      ///< before each step, and after the last
  Tensor recurrent;               ///< the weight of the states
};

Tensor in_sequence(const Tensor& steps, const Lstm& node) { return node.reverse ? steps.flip(0) : steps; }

Steps steps_of(Lstm& node, at::ScalarType type) {
  const auto read = [&](::torch::autograd::SavedVariable& variable) {
    return saved(variable, &node).to(type);
  };
  Steps steps;
  steps.inputs = in_sequence(read(node.input_), node);
  steps.recurrent = read(node.weight1_);
  const Tensor outputs = in_sequence(read(node.result0_), node);
  const std::int64_t count = outputs.size(0);
  const Tensor first = read(node.hx__).reshape({1, outputs.size(1), outputs.size(2)});
  steps.states = at::cat({first, outputs.narrow(0, 0, count - 1)});

  const auto weighted = [](const Tensor& all, const Tensor& weight) {
    return times(all.flatten(0, 1), weight.t()).view({all.size(0), all.size(1), -1});
  };
  Tensor sums = weighted(steps.inputs, read(node.weight0_)) + weighted(steps.states, steps.recurrent);
  if (node.has_biases) sums = sums + read(node.weight2_) + read(node.weight3_);
  const auto parts = sums.chunk(4, 2);
  steps.in = parts[0].sigmoid();
  steps.forget = parts[1].sigmoid();
  steps.fresh = parts[2].tanh();
  steps.out = parts[3].sigmoid();
  steps.cells = {read(node.cx__).reshape({outputs.size(1), outputs.size(2)})};
  for (std::int64_t t = 0; t < count; ++t)
    steps.cells.push_back(steps.forget[t] * steps.cells.back() + steps.in[t] * steps.fresh[t]);
  return steps;
}

/// What arrives at the sums before the gates, (T, B, 4 H).
Tensor gradients_at_gates(const Moment& moment, const Lstm& node, const Steps& steps) {
  const auto arriving = [&](std::size_t output, const Tensor& like) {
    const Tensor& g = moment.gradients.at(output);
    return g.defined() ? g.to(like.scalar_type()).reshape(like.sizes()) : at::zeros_like(like);
  };
  const Tensor at_outputs = in_sequence(arriving(0, steps.states), node);
  Tensor at_state = arriving(1, steps.cells.front());
  Tensor at_cell = arriving(2, steps.cells.front());
  std::vector<Tensor> all(steps.cells.size() - 1);
  for (std::size_t k = all.size(); k-- > 0;) {
    const auto t = static_cast<std::int64_t>(k);
    const Tensor in = steps.in[t];
    const Tensor forget = steps.forget[t];
    const Tensor fresh = steps.fresh[t];
    const Tensor out = steps.out[t];
    const Tensor squashed = steps.cells[k + 1].tanh();
    const Tensor h = at_outputs[t] + at_state;
    const Tensor c = at_cell + h * out * (1 - squashed * squashed);
    all[k] = at::cat({c * fresh * in * (1 - in), c * steps.cells[k] * forget * (1 - forget),
                      c * in * (1 - fresh * fresh), h * squashed * out * (1 - out)},
                     1);
    at_state = at::mm(all[k], steps.recurrent);
    at_cell = c * forget;
  }
  return at::stack(all);
}

}  // namespace

Contribution lstm_rule(const Moment& moment) {
  if (moment.kept.empty()) {
    auto& node = *static_cast<Lstm*>(moment.node);
    if (node.mode != 2)  // as at::native numbers the kinds
      throw InvariantError("observe", "a fused recurrent layer that is no LSTM");
    const auto type = moment.any_gradient().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const Steps steps = steps_of(node, type);
    for (const Tensor& part : {gradients_at_gates(moment, node, steps), steps.inputs, steps.states})
      moment.kept.push_back(batch_first(part, moment.layout, moment.batch).flatten(1, 2));
  }
  const Tensor& gradients = moment.kept[0];
  if (moment.slot == 1) return Contribution::of_factors(Factors::of_matrix(gradients, moment.kept[1]));
  if (moment.slot == 2) return Contribution::of_factors(Factors::of_matrix(gradients, moment.kept[2]));
  return Contribution::of_rows(gradients.sum(1));
}

}  // namespace cdgrab::torch
