# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers, and nodes that no rule covers, against gradients of one example at a time."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cdgrab

B, T, C = 6, 5, 4


def rows_of_one_at_a_time(model, x, y, loss_of):
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(len(y)):
        gradients = torch.autograd.grad(loss_of(model, x[i : i + 1], y[i : i + 1]), parameters)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(rows)


def class_loss(model, x, y):
    return F.cross_entropy(model(x), y)


def geometry_of(model, x, y, loss_of=class_loss, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cdgrab.GradientGeometry(parameters=model, **options).compute(loss_of(model, x, y), len(y))


def in_order_of(model, geometry):
    places = {id(p): k for k, p in enumerate(geometry.parameters())}
    parts = geometry.rows().split([p.numel() for p in geometry.parameters()], 1)
    return torch.cat([parts[places[id(p)]] for p in model.parameters()], 1)


def assert_rows_are_right(model, x, y, loss_of=class_loss, **options):
    geometry = geometry_of(model, x, y, loss_of, **options)
    rows = in_order_of(model, geometry)
    expected = rows_of_one_at_a_time(model, x, y, loss_of)
    exact = expected.dtype == torch.float64
    assert (rows - expected).abs().max() <= (1e-10 if exact else 1e-5) * expected.abs().max()
    return geometry.rules()


def batch(*shape, dtype=torch.float32):
    return torch.randn(B, *shape, dtype=dtype), torch.randint(3, (B,))


class Recurrent(nn.Module):
    """A class from the last output, from the last states, or from all of it."""

    def __init__(self, layer, reads, width):
        super().__init__()
        self.layer, self.reads = layer, reads
        self.head = nn.LazyLinear(3)
        self(torch.zeros(1, T, width, dtype=next(layer.parameters()).dtype))

    def forward(self, x):
        outputs, states = self.layer(x if self.layer.batch_first else x.transpose(0, 1))
        if not self.layer.batch_first:
            outputs = outputs.transpose(0, 1)
        states = states if isinstance(states, tuple) else (states,)
        last = [state[-1] for state in states]
        seen = {"outputs": [outputs[:, -1]], "states": last, "both": [outputs.mean(1), *last]}[self.reads]
        return self.head.to(x.dtype)(torch.cat(seen, 1))


@pytest.mark.parametrize("reads", ["outputs", "states", "both"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind, dtype, batch_first, reads):
    layer = kind(C, 7, 2, batch_first=batch_first).to(dtype)
    assert_rows_are_right(Recurrent(layer, reads, C), *batch(T, C, dtype=dtype))


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"bias": False}, {"bidirectional": True, "bias": False}])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_two_directions_and_without_bias(kind, options):
    assert_rows_are_right(Recurrent(kind(C, 7, 2, batch_first=True, **options), "outputs", C), *batch(T, C))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_an_lstm_with_projections():
    assert_rows_are_right(Recurrent(nn.LSTM(C, 7, 2, proj_size=3, batch_first=True), "outputs", C), *batch(T, C))


def test_a_sequence_as_long_as_the_batch():
    assert_rows_are_right(Recurrent(nn.LSTM(C, 7, 2, batch_first=True), "outputs", C), *batch(B, C))


def test_the_fused_lstm_has_a_rule():
    model = Recurrent(nn.LSTM(C, 7, batch_first=True), "outputs", C)
    rules = assert_rows_are_right(model, *batch(T, C), strict=True)
    assert "MkldnnRnnLayerBackward0" in rules


@pytest.mark.parametrize(
    "middle",
    [
        nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose2d(2, 4, 3, groups=2, dilation=2),
        nn.ConvTranspose2d(2, 3, (2, 3), stride=(2, 1), bias=False),
    ],
)
def test_transposed_convolutions(middle):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), middle, nn.Flatten(), nn.LazyLinear(3))
    x, y = batch(1, 6, 7)
    model(x)
    assert_rows_are_right(model, x, y, strict=True)


@pytest.mark.parametrize(("kind", "sizes"), [(nn.Conv3d, (4, 4, 4)), (nn.ConvTranspose1d, (6,)), (nn.Conv1d, (6,))])
def test_convolutions_of_other_dimensions(kind, sizes):
    model = nn.Sequential(kind(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))
    x, y = batch(1, *sizes)
    model(x)
    assert_rows_are_right(model, x, y, strict=True)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


class Centred(torch.autograd.Function):
    """Mixes the examples: each is centred by the mean of all."""

    @staticmethod
    def forward(ctx, x, weight):
        centred = x - x.mean(0, keepdim=True)
        ctx.save_for_backward(centred, weight)
        return centred @ weight

    @staticmethod
    def backward(ctx, gradient):
        centred, weight = ctx.saved_tensors
        below = gradient @ weight.T
        return below - below.mean(0, keepdim=True), centred.T @ gradient


class WithFunction(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.first = nn.Linear(C, 5)
        self.weight = nn.Parameter(torch.randn(5, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.function.apply(self.first(x), self.weight).tanh())


class WithBilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(C, 5)
        self.product = nn.Bilinear(5, 5, 3)

    def forward(self, x):
        h = self.first(x)
        return self.product(h, h.tanh())


class WithBag(nn.Module):
    def __init__(self, mode, **options):
        super().__init__()
        self.bag = nn.EmbeddingBag(11, 5, mode=mode, **options)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.bag((x.abs() * 10).long() % 11))


WITHOUT_RULE = [
    WithFunction(Product),
    WithBilinear(),
    WithBag("sum"),
    WithBag("mean", padding_idx=2),
    WithBag("max"),
    WithBag("sum", sparse=True),
]


@pytest.mark.parametrize("model", WITHOUT_RULE, ids=lambda m: type(m).__name__)
def test_a_node_without_a_rule_is_applied_to_one_example_at_a_time(model):
    rules = geometry_of(model, *batch(C)).rules()
    assert any(rule.startswith("by example: ") for rule in rules)
    if not getattr(getattr(model, "bag", None), "sparse", False):
        assert_rows_are_right(model, *batch(C))


@pytest.mark.parametrize("model", WITHOUT_RULE[:3], ids=lambda m: type(m).__name__)
def test_strict_refuses_a_node_without_a_rule_by_name(model):
    with pytest.raises(cdgrab.UserError, match=r"no rule covers: \w+Backward\d? with "):
        geometry_of(model, *batch(C), strict=True)


def test_a_node_without_a_rule_is_announced_once():
    model = WithFunction(type("Announced", (Product,), {}))
    x, y = batch(C)
    with pytest.warns(UserWarning, match=r"no rule covers AnnouncedBackward with weight \(5x5\)"):
        cdgrab.GradientGeometry(parameters=model).compute(class_loss(model, x, y), B)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cdgrab.GradientGeometry(parameters=model).compute(class_loss(model, x, y), B)


def test_a_node_that_mixes_examples_is_found_out():
    with pytest.raises(cdgrab.UserError, match="CentredBackward sends gradients of one example to"):
        geometry_of(WithFunction(Centred), *batch(C))


def test_rows_without_a_rule_stay_within_the_budget():
    with pytest.raises(cdgrab.UserError, match="rows of 600 bytes are more than the 100 that are left"):
        geometry_of(WithFunction(Product), *batch(C), budget=100)


def test_observing_a_node_without_a_rule_changes_no_gradient():
    model = WithFunction(Product)
    x, y = batch(C)
    class_loss(model, x, y).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sampler = cdgrab.Sampler(B)
    list(sampler)
    loss = class_loss(model, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler.observe(loss, B)
    loss.backward()
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        assert torch.equal(parameter.grad, gradient)


def mlp(dtype=torch.float32):
    return nn.Sequential(nn.Linear(C, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", [mlp(), nn.Sequential(nn.Conv1d(1, 4, 2), nn.Flatten(), nn.Linear(12, 3))])
def test_autocast_is_as_near_to_float64_as_one_example_at_a_time(model, dtype):
    x, y = batch(C) if isinstance(model[0], nn.Linear) else batch(1, C)

    def loss_of(model, x, y):
        with torch.autocast("cpu", dtype):
            return F.cross_entropy(model(x).float(), y)

    geometry = geometry_of(model, x, y, loss_of)
    assert geometry.rows().dtype == torch.float32
    exact = copy.deepcopy(model).double()
    expected = rows_of_one_at_a_time(exact, x.double(), y, class_loss)
    single = rows_of_one_at_a_time(model, x, y, loss_of).double()
    rows = in_order_of(model, geometry).double()
    assert (rows - expected).norm() <= 1.5 * (single - expected).norm() + 1e-3 * expected.norm()


def test_parameters_in_bfloat16():
    model = mlp(torch.bfloat16)
    x, y = batch(C, dtype=torch.bfloat16)
    geometry = geometry_of(model, x, y)
    expected = rows_of_one_at_a_time(copy.deepcopy(model).double(), x.double(), y, class_loss)
    rows = in_order_of(model, geometry)
    assert rows.dtype == torch.float32  # products are taken in float32 or better
    assert (rows.double() - expected).abs().max() <= 2**-5 * expected.abs().max()
