// SPDX-License-Identifier: Apache-2.0
// Fused recurrent layers. They keep no gates, so these are computed again from the layer's input and output;
// the gradients that arrive at the gates then make every parameter's.
#include "cdgrab/error.hpp"
#include "rules.hpp"

namespace cdgrab::torch {
namespace {

/// What arrives at the gates, and what they see: (T, B, ..) in the sequence in which steps were made.
struct Gates {
  Tensor gradients;  ///< of the sums before the nonlinearities, (T, B, 4 H)
  Tensor inputs;     ///< (T, B, I)
  Tensor states;     ///< before each step, (T, B, H)
};

Tensor in_sequence(const Tensor& steps, bool reverse) { return reverse ? steps.flip(0) : steps; }

Gates gates_of_lstm(const Moment& moment) {
  auto* node = static_cast<nodes::MkldnnRnnLayerBackward0*>(moment.node);
  if (node->mode != 2)  // as at::native numbers the kinds
    throw InvariantError("observe", "a fused recurrent layer that is no LSTM");
  const auto type = moment.any_gradient().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto read = [&](::torch::autograd::SavedVariable& variable) {
    return saved(variable, moment.node).to(type);
  };
  const Tensor inputs = in_sequence(read(node->input_), node->reverse);
  const Tensor outputs = in_sequence(read(node->result0_), node->reverse);
  const Tensor recurrent = read(node->weight1_);
  const Tensor first_state = read(node->hx__).reshape({1, outputs.size(1), outputs.size(2)});
  const Tensor first_cell = read(node->cx__).reshape({outputs.size(1), outputs.size(2)});
  const std::int64_t steps = outputs.size(0);
  const Tensor states = at::cat({first_state, outputs.narrow(0, 0, steps - 1)});

  Tensor sums = at::matmul(inputs, read(node->weight0_).t()) + at::matmul(states, recurrent.t());
  if (node->has_biases) sums = sums + read(node->weight2_) + read(node->weight3_);
  const auto parts = sums.chunk(4, 2);
  const Tensor in = parts[0].sigmoid();
  const Tensor forget = parts[1].sigmoid();
  const Tensor fresh = parts[2].tanh();
  const Tensor out = parts[3].sigmoid();
  std::vector<Tensor> cells = {first_cell};
  for (std::int64_t t = 0; t < steps; ++t) cells.push_back(forget[t] * cells.back() + in[t] * fresh[t]);

  const auto arriving = [&](std::size_t output, at::IntArrayRef shape) {
    const Tensor& g = moment.gradients.at(output);
    return g.defined() ? g.to(type).reshape(shape) : at::zeros(shape, outputs.options());
  };
  const Tensor at_outputs = in_sequence(arriving(0, outputs.sizes()), node->reverse);
  Tensor at_state = arriving(1, first_cell.sizes());
  Tensor at_cell = arriving(2, first_cell.sizes());
  Tensor gradients = at::empty_like(sums);
  for (std::int64_t t = steps - 1; t >= 0; --t) {
    const Tensor squashed = cells[static_cast<std::size_t>(t) + 1].tanh();
    const Tensor h = at_outputs[t] + at_state;
    const Tensor c = at_cell + h * out[t] * (1 - squashed * squashed);
    const Tensor step = at::cat({c * fresh[t] * in[t] * (1 - in[t]),
                                 c * cells[static_cast<std::size_t>(t)] * forget[t] * (1 - forget[t]),
                                 c * in[t] * (1 - fresh[t] * fresh[t]), h * squashed * out[t] * (1 - out[t])},
                                1);
    gradients[t].copy_(step);
    at_state = at::mm(step, recurrent);
    at_cell = c * forget[t];
  }
  return {gradients, inputs, states};
}

}  // namespace

Contribution lstm_rule(const Moment& moment) {
  if (moment.kept.empty()) {
    const Gates gates = gates_of_lstm(moment);
    for (const Tensor& part : {gates.gradients, gates.inputs, gates.states})
      moment.kept.push_back(part.transpose(0, 1));
  }
  const Tensor& gradients = moment.kept[0];
  if (moment.slot == 1) return Contribution::of_factors(Factors::of_matrix(gradients, moment.kept[1]));
  if (moment.slot == 2) return Contribution::of_factors(Factors::of_matrix(gradients, moment.kept[2]));
  return Contribution::of_rows(gradients.sum(1));
}

}  // namespace cdgrab::torch
