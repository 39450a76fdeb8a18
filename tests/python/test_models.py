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


class Frames(nn.Module):
    """Images of a sequence through one convolution and one norm: several rows per example along dimension 0."""

    def __init__(self, time_first):
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 3)
        self.time_first = time_first

    def forward(self, x):
        b, t = x.shape[:2]
        frames = (x.transpose(0, 1) if self.time_first else x).flatten(0, 1)
        h = self.norm(self.convolution(frames)).relu().mean((2, 3))
        return self.head(h.view(t, b, -1).mean(0) if self.time_first else h.view(b, t, -1).mean(1))


@pytest.mark.parametrize("time_first", [False, True])
def test_several_images_per_example(time_first):
    assert_rows_are_right(Frames(time_first), class_loss, torch.randn(B, 4, 2, 5, 5), torch.randint(3, (B,)))


@pytest.mark.parametrize(
    "form",
    [
        lambda x, w: torch.bmm(x.expand(2, -1, -1), w.view(2, 5, 3)).sum(0),
        lambda x, w: torch.einsum("bi,hio->bo", x, w.view(2, 5, 3)),
        lambda x, w: x @ w.view(5, 6)[:, :3] + F.linear(x, w.view(6, 5))[:, :3],
        lambda x, w: F.linear(x, w.view(6, 5)[:1].expand(3, 5)),
        lambda x, w: torch.einsum("bi,oi->ob", x, w.view(6, 5)).T[:, :3],
    ],
)
def test_a_parameter_in_odd_products(form):
    model = nn.ParameterList([nn.Parameter(torch.randn(30))])
    x, y = vectors()
    assert_rows_are_right(model, lambda m, x, y: F.cross_entropy(form(x, m[0]), y), x, y)


class Between(nn.Module):
    """Something happens to the examples between two layers."""

    def __init__(self, between):
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.last = nn.Linear(4, 3)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


@pytest.mark.parametrize(
    "between",
    [lambda h: h.flip(0), lambda h: h.roll(1, 0), lambda h: h[torch.randperm(len(h))], lambda h: h.cumsum(0)],
)
def test_examples_that_change_places_are_refused(between):
    x, y = vectors()
    with pytest.raises(cdgrab.UserError, match="does not keep the examples apart"):
        cdgrab.gram(class_loss(Between(between), x, y), B)


def test_a_loss_whose_batch_is_lost_is_no_penalty():
    actor, critic = nn.Linear(5, 3), nn.Linear(5, 1)
    x, y = vectors()
    chosen = actor(x).log_softmax(1).gather(1, y.unsqueeze(1))
    with pytest.raises(cdgrab.UserError, match="GatherBackward0"):
        cdgrab.gram(critic(x).square().mean() - chosen.mean(), B)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("length", [B, 2 * B, 5])
def test_stock_transformer_layers(batch_first, length):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
            self.decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            x = x if batch_first else x.transpose(0, 1)
            return self.head(self.decoder(x, self.encoder(x)).mean(1 if batch_first else 0))

    assert_rows_are_right(Model(), class_loss, torch.randn(B, length, 8), torch.randint(3, (B,)))
