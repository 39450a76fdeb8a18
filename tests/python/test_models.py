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
        lambda x, w: torch.stack([x @ w[:5], x @ w[5:10], x.tanh() @ w[:5]], 1),
        lambda x, w: (x.view(-1, 1, 1, 5).expand(-1, 2, 4, 5).cumsum(2) @ w.view(2, 5, 3)).mean((1, 2)),
        lambda x, w: torch.cat([w[:3].expand(len(x), 1, 3), x[:, None, :3]], 1).cumsum(1).tanh().sum(1),
        lambda x, w: (w[:5].view(1, 5).repeat(len(x), 2) * x.repeat(1, 2)).cumsum(1)[:, :3],
        lambda x, w: w.view(10, 3)[(x[:, :2] > 0).long() - 1].sum(1),
        lambda x, w: torch.logsumexp(x[:, None] * w[:15].view(3, 5), 2) + (x[:, None] * w[15:].view(3, 5)).amax(2),
    ],
)
def test_a_parameter_in_odd_products(form):
    model = nn.ParameterList([nn.Parameter(torch.randn(30))])
    x, y = vectors()
    assert_rows_are_right(model, lambda m, x, y: F.cross_entropy(form(x, m[0]), y), x, y)


class Class(nn.Module):
    """A class token and positions before an attention layer, as vision transformers have them."""

    def __init__(self, copy):
        super().__init__()
        self.patches = nn.Conv2d(1, C, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, C))
        self.position = nn.Parameter(torch.randn(1, 5, C))
        self.layer = nn.TransformerEncoderLayer(C, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(C, 3)
        self.copy = copy

    def forward(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.copy(self.token, len(x)), patches], 1) + self.position
        return self.head(self.layer(h)[:, 0])


@pytest.mark.parametrize("copy", [lambda t, b: t.expand(b, -1, -1), lambda t, b: t.repeat(b, 1, 1)])
@pytest.mark.parametrize("batch", [B, 1])
def test_a_class_token_copied_to_every_example(copy, batch):
    assert_rows_are_right(Class(copy), class_loss, torch.randn(batch, 1, 4, 4), torch.randint(3, (batch,)))


def test_images_through_norms_activations_and_padding_with_parameters():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 2, padding="same"), nn.InstanceNorm2d(4, affine=True), nn.PReLU(4),
        nn.Conv2d(4, 4, 2, padding="same"), nn.PReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    assert_rows_are_right(model, class_loss, torch.randn(B, 2, 5, 5), torch.randint(3, (B,)))


def test_losses_by_gather_and_logsumexp():
    def loss_of(model, x, y):
        scores = model(x)
        return (scores.logsumexp(1) - scores.gather(1, y[:, None]).squeeze(1)).mean()

    assert_rows_are_right(nn.Linear(5, 3), loss_of, *vectors())


def test_inputs_that_require_gradients_are_no_parameters():
    x, y = vectors()
    assert_rows_are_right(nn.Linear(5, 3), class_loss, x.requires_grad_(), y)


def test_more_ways_to_the_examples_than_can_be_walked_are_refused():
    w = torch.randn(5, 3, requires_grad=True)
    made = w
    for _ in range(14):
        made = made + made.tanh()
    x, y = vectors()
    with pytest.raises(cdgrab.UserError, match="ways from a parameter"):
        cdgrab.gram(F.cross_entropy(x @ made, y), B)


class Between(nn.Module):
    """Something happens to the examples between two layers."""

    def __init__(self, between):
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.last = nn.Linear(4, 3)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


@pytest.mark.parametrize("between", [lambda h: h.roll(1, 0), lambda h: h.sort(0).values, lambda h: h.cumsum(0)])
def test_examples_that_are_mixed_are_refused(between):
    x, y = vectors()
    with pytest.raises(cdgrab.UserError, match="does not keep the examples apart"):
        cdgrab.gram(class_loss(Between(between), x, y), B)


def test_a_loss_whose_batch_is_lost_is_no_penalty():
    actor, critic = nn.Linear(5, 3), nn.Linear(5, 1)
    x, _ = vectors()
    with pytest.raises(cdgrab.UserError, match="SortBackward0"):
        cdgrab.gram(critic(x).square().mean() - actor(x).sort(0).values.mean(), B)


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


def test_another_loss_through_a_shared_layer_is_refused_unless_their_sum_is_observed():
    trunk, head, other = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 1)
    x, y = vectors()

    def losses():
        h = trunk(x).tanh()
        return F.cross_entropy(head(h), y), other(h).square().mean()

    def observe_one_and_run(observed, run):
        sampler = cdgrab.Sampler(B, order="pair")
        list(sampler)
        sampler.observe(observed, B)
        run.backward()
        return sampler.report()["observed"]

    loss, auxiliary = losses()
    with pytest.raises(RuntimeError, match="observe their sum"):
        observe_one_and_run(loss, loss + auxiliary)
    total = sum(losses())
    assert observe_one_and_run(total, total) == B
    loss, _ = losses()
    penalty = sum(p.square().sum() for p in trunk.parameters())
    assert observe_one_and_run(loss, loss + 0.1 * penalty) == B


class Tokens(nn.Module):
    """Weights that are made inside a checkpoint."""

    def __init__(self, sparse):
        super().__init__()
        self.token = nn.Embedding(V, C, sparse=sparse)
        self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(C, C))
        self.head = nn.Linear(C, V)

    def forward(self, x):
        return self.head(torch.utils.checkpoint.checkpoint(self.norm, self.token(x), use_reentrant=False))


@pytest.mark.parametrize("batch", [1, 2])
def test_weights_made_inside_a_checkpoint(batch):
    x, y = tokens()
    assert_rows_are_right(Tokens(sparse=False), token_loss, x[:batch], y[:batch], batch_axis=0)


def test_a_batch_of_one_is_what_every_node_sends():
    x, y = tokens()
    model = Tokens(sparse=True)
    penalty = sum(p.square().sum() for p in model.head.parameters())
    observed = cdgrab.GradientGeometry(parameters=model)
    loss = token_loss(model, x[:1], y[:1]) + penalty
    observed.observe(loss, 1)
    loss.backward()
    expected = torch.autograd.grad(token_loss(model, x[:1], y[:1]), observed.parameters())
    row = torch.cat([(g.to_dense() if g.is_sparse else g).flatten() for g in expected])
    torch.testing.assert_close(observed.rows(), row[None])
