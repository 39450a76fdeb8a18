# SPDX-License-Identifier: Apache-2.0
"""GradientGeometry against gradients of one example at a time in float64, and the programs of its page."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cdgrab

PAGE = Path(__file__).parents[2] / "docs" / "gradients.md"


class Tied(nn.Module):
    """A table that is looked up and multiplied by, a norm, a convolution over the positions, a bare scale."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Conv1d(8, 8, 3, padding=1)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        h = self.norm(self.table(x))
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2).tanh()
        return F.linear(self.scale * h, self.table.weight)


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def tokens(batch):
    return torch.randint(11, (batch, 5)), torch.randint(11, (batch, 5))


def dull_rows(model, x, y):
    """By name, one row per example."""
    rows = []
    for i in range(len(x)):
        gradients = torch.autograd.grad(loss_of(model, x[i : i + 1], y[i : i + 1]), list(model.parameters()))
        rows.append([gradient.flatten() for gradient in gradients])
    names = [name for name, _ in model.named_parameters()]
    return {name: torch.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def compute(model, x, y, **options):
    return cdgrab.GradientGeometry(parameters=model, **options).compute(loss_of(model, x, y), len(x))


@pytest.fixture(params=[0, None], ids=["nothing formed", "formed where cheaper"])
def observed(request):
    model = Tied().double()
    x, y = tokens(6)
    return model, compute(model, x, y, budget=request.param), dull_rows(model, x, y)


def check(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_cross_is_the_products_with_another_loss(observed, batch):
    model, geometry, rows = observed
    x, y = tokens(batch)
    others = dull_rows(model, x, y)
    other = compute(model, x, y)
    check(geometry.cross(other), sum(rows[name] @ others[name].T for name in rows))
    check(other.cross(geometry), geometry.cross(other).T)
    check(geometry.part("table.*").cross(other), rows["table.weight"] @ others["table.weight"].T)


def test_norms_and_parts(observed):
    _, geometry, rows = observed
    assert sorted(geometry.names()) == sorted(rows)
    check(geometry.norms(), sum(row.square().sum(1) for row in rows.values()).sqrt())
    for name in geometry.names():
        part = geometry.part(name)
        assert part.names() == [name]
        check(part.norms(), rows[name].norm(dim=1))
        check(part.gram(), rows[name] @ rows[name].T)
    both = geometry.part("mix.*")
    assert sorted(both.names()) == ["mix.bias", "mix.weight"]
    check(both.rows(), torch.cat([rows[name] for name in both.names()], 1))


def test_a_part_reads_losses_as_its_whole_does():
    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    whole = cdgrab.GradientGeometry(reduction="sum", parameters=model)
    whole.compute(model(x).square().sum(), 4)
    part = whole.part("bias")
    part.compute(model(x).square().sum(), 4)
    assert part.names() == whole.names()
    check(part.gram(), whole.gram())


def test_directions_by_place_by_name_and_several(observed):
    model, geometry, rows = observed
    directions = {name: torch.randn(3, *p.shape, dtype=p.dtype) for name, p in model.named_parameters()}
    expected = sum(rows[name] @ directions[name].reshape(3, -1).T for name in rows)
    check(geometry.inner([directions[name] for name in geometry.names()]), expected)
    check(geometry.inner(directions | {"of another model": torch.ones(3)}), expected)
    check(geometry.inner({name: each[1] for name, each in directions.items()}), expected[:, 1])
    assert geometry.inner(dict(model.named_parameters())).shape == (6,)


def test_weighted_sums_are_those_of_rows(observed):
    _, geometry, rows = observed
    weights = torch.tensor([0.5, 0.0, 2.0, -1.0, 0.0, 1e3])
    for name, parameter, total in zip(
        geometry.names(), geometry.parameters(), geometry.weighted_sum(weights), strict=True
    ):
        assert total.shape == parameter.shape
        check(total.flatten(), weights.double() @ rows[name])


@pytest.mark.parametrize("length", [0.1, 3.0])
def test_clipped_gradients_are_no_longer_than_asked(length):
    model, (x, y) = Tied(), tokens(6)
    geometry = compute(model, x, y)
    weights = (length / geometry.norms()).clamp(max=1)
    rows = torch.cat(list(dull_rows(model, x, y).values()), 1)
    clipped = sum(row * min(1.0, length / row.norm()) for row in rows)
    totals = dict(zip(geometry.names(), geometry.weighted_sum(weights), strict=True))
    torch.testing.assert_close(
        torch.cat([totals[name].flatten() for name, _ in model.named_parameters()]), clipped, rtol=1e-4, atol=1e-5
    )
    for parameter, total in zip(geometry.parameters(), totals.values(), strict=True):
        parameter.grad = total


@pytest.mark.parametrize("budget", [0, None])
def test_mixed_precision_gives_float32_and_sums_of_the_parameters_type(budget):
    x, y = torch.randn(4, 2, 6, 6), torch.randint(3, (4,))
    plain = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Flatten(), nn.Linear(128, 3))
    half = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Flatten(), nn.Linear(128, 3)).bfloat16()
    half.load_state_dict(plain.state_dict())

    def geometry(model, loss):
        return cdgrab.GradientGeometry(parameters=model, budget=budget).compute(loss, 4)

    exact = geometry(plain, F.cross_entropy(plain(x), y))
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(plain(x), y)
    for model, mixed in [(plain, loss), (half, F.cross_entropy(half(x.bfloat16()).float(), y))]:
        rough = geometry(model, mixed)
        assert rough.norms().dtype == torch.float32
        torch.testing.assert_close(rough.norms(), exact.norms(), rtol=0.05, atol=0.01)
        torch.testing.assert_close(rough.gram(), exact.gram(), rtol=0.1, atol=0.1)
        direction = [torch.ones_like(p) for p in rough.parameters()]
        torch.testing.assert_close(rough.inner(direction), exact.inner(direction), rtol=0.1, atol=0.2)
        sums = rough.weighted_sum(torch.ones(4))
        assert [s.dtype for s in sums] == [p.dtype for p in rough.parameters()]


def test_training_goes_on_between_two_losses():
    model, (x, y) = Tied().double(), tokens(6)
    before = compute(model, x, y)
    expected = before.gram()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, x, y).backward()
    optimizer.step()
    after = compute(model, x, y)
    check(before.gram(), expected)
    check(before.cross(after), before.rows() @ after.rows()[:, columns(after, before)].T)


def columns(of, order):
    """Where the parameters of one geometry's rows are in another's."""
    begins, at = {}, 0
    for name, parameter in zip(of.names(), of.parameters(), strict=True):
        begins[name] = torch.arange(at, at + parameter.numel())
        at += parameter.numel()
    return torch.cat([begins[name] for name in order.names()])


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda g: cdgrab.GradientGeometry().cross(g), "call loss.backward() first"),
        (lambda g: g.cross(compute(Tied(), *tokens(2))), "share none"),
        (lambda g: g.weighted_sum(torch.ones(5)), "weights of shape 5; one number for each of the 6 examples"),
        (lambda g: g.inner([torch.ones(3)]), "1 tensors for 6 parameters"),
        (lambda g: g.inner({"scale": torch.ones(())}), "no tensor for"),
        (lambda g: g.part("nothing"), "'nothing' matches none of 6 parameters"),
    ],
)
def test_mistakes_are_explained(ask, text):
    geometry = compute(Tied(), *tokens(6))
    with pytest.raises(cdgrab.UserError, match=re.escape(text)):
        ask(geometry)


def programs():
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_has_its_programs():
    assert len(programs()) == 4


@pytest.mark.parametrize("program", programs(), ids=["first", "attribution", "clipping", "noise scale"])
def test_a_program_of_the_page_runs(program, capsys):
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
    assert "nan" not in capsys.readouterr().out
