# SPDX-License-Identifier: Apache-2.0
"""What observe() reads off models of all kinds, against gradients of one example at a time in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cdgrab

B, T, C, V = 6, 6, 8, 9


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_rows_are_right(model, loss_of, x, y, **options):
    batch = len(x)
    geometry = cdgrab.GradientGeometry(parameters=model, **options).compute(loss_of(model, x, y), batch)
    parameters = geometry.parameters()
    assert len(parameters) == sum(p.requires_grad for p in model.parameters())
    rows = []
    for i in range(batch):
        loss = loss_of(model, x[i : i + 1], y[i : i + 1])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    expected = torch.stack(rows)
    torch.testing.assert_close(geometry.rows(), expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(geometry.gram(), expected @ expected.T, rtol=1e-9, atol=1e-11)
    direction = [torch.randn_like(p) for p in parameters]
    torch.testing.assert_close(
        geometry.inner(direction), expected @ torch.cat([d.flatten() for d in direction]), rtol=1e-8, atol=1e-10
    )


def tokens():
    return torch.randint(V, (B, T)), torch.randint(V, (B, T))


def token_loss(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def vectors():
    return torch.randn(B, 5), torch.randint(3, (B,))


def class_loss(model, x, y):
    return F.cross_entropy(model(x), y)


class Attention(nn.Module):
    """Scores that are formed; queries, keys and values from one matrix."""

    def __init__(self, positions):
        super().__init__()
        self.token = nn.Embedding(V, C)
        self.position = nn.Embedding(12, C)
        self.packed = nn.Linear(C, 3 * C)
        self.head = nn.Linear(C, V)
        self.positions = positions

    def forward(self, x):
        h = self.token(x) + self.position(self.positions(x.size(1)))
        q, k, v = (part.view(*x.shape, 2, C // 2).transpose(1, 2) for part in self.packed(h).split(C, 2))
        mixed = F.dropout((q @ k.transpose(-1, -2)).softmax(-1), 0.0, True) @ v
        return self.head(mixed.transpose(1, 2).reshape(*x.shape, C))


@pytest.mark.parametrize("positions", [torch.arange, lambda t: torch.arange(t).unsqueeze(0)])
@pytest.mark.parametrize("batch", [B, 3, 2])
def test_position_embeddings_and_packed_attention(positions, batch):
    x, y = tokens()
    assert_rows_are_right(Attention(positions), token_loss, x[:batch], y[:batch])


@pytest.mark.parametrize(
    "norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm, nn.utils.parametrizations.spectral_norm]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_weights_that_are_made_of_parameters(norm):
    model = nn.Sequential(norm(nn.Linear(5, 8)), nn.Tanh(), nn.Linear(8, 3)).eval()
    assert_rows_are_right(model, class_loss, *vectors())


class Composed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.log_scale = nn.Parameter(torch.tensor(0.3))
        self.a = nn.Parameter(torch.randn(3, 5))
        self.b = nn.Parameter(torch.randn(3, 5))
        self.stack = nn.Parameter(torch.randn(2, 5, 3))

    def forward(self, x):
        made = self.a * self.b
        return (
            self.linear(x) * self.log_scale.exp() + F.linear(x, made) + F.linear(x.tanh(), made) + x @ self.stack.sum(0)
        )


def test_parameters_that_meet_each_other_before_the_examples():
    assert_rows_are_right(Composed(), class_loss, *vectors())


def test_a_penalty_is_nobodys_share():
    model, (x, y) = Composed(), vectors()
    plain = cdgrab.gram(class_loss(model, x, y), B)
    penalty = sum(p.square().sum() for p in model.parameters())
    torch.testing.assert_close(cdgrab.gram(class_loss(model, x, y) + 0.1 * penalty, B), plain)


def test_tokens_that_never_meet_need_the_axis_named():
    model = nn.Sequential(nn.Embedding(V, C), nn.Linear(C, V))
    with pytest.raises(cdgrab.UserError, match="batch_axis"):
        assert_rows_are_right(model, token_loss, *tokens())
    assert_rows_are_right(model, token_loss, *tokens(), batch_axis=0)
    x, y = tokens()

    def time_first(model, x, y):
        return token_loss(model, x.T, y.T)

    assert_rows_are_right(model, time_first, x, y, batch_axis=1)
