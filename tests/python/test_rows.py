# SPDX-License-Identifier: Apache-2.0
"""Batches that are one axis of rows, of which each example has some: packed, ragged, routed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

import cdgrab

C, H, CLASSES = 4, 6, 3

# Of rows per example: one row, none, several.
LENGTHS = [[3, 1, 4, 2], [1, 5], [2, 0, 3, 1], [4, 4, 4], [1, 1, 1], [7, 1, 1, 1, 1]]


def ragged(lengths):
    """Rows (R, C), a label for each, and their examples."""
    rows = sum(lengths)
    owners = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return torch.randn(rows, C, dtype=torch.float64), torch.randint(CLASSES, (rows,)), owners


def named(model, geometry):
    """Rows of the parameters in the model's order; zero for what the loss does not depend on."""
    met = {id(p): part for p, part in zip(geometry.parameters(), split(geometry), strict=True)}
    batch = len(geometry.rows())
    return torch.cat([met.get(id(p), torch.zeros(batch, p.numel())) for p in model.parameters()], 1)


def split(geometry):
    return geometry.rows().split([p.numel() for p in geometry.parameters()], 1)


def observed(model, loss, batch, owners=None, **options):
    return named(
        model, cdgrab.GradientGeometry(parameters=model, **options).compute(loss, batch, example_of_row=owners)
    )


def one_by_one(model, losses):
    """Gradients of a loss per example, None for one that has none."""
    parameters = list(model.parameters())
    rows = []
    for loss in losses:
        if loss is None:
            rows.append(torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype))
            continue
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(rows)


def assert_close(found, expected):
    assert (found - expected).abs().max() <= 1e-10 * expected.abs().max()


def per_row(*layers):
    return nn.Sequential(nn.Linear(C, H), nn.Tanh(), *layers, nn.Linear(H, CLASSES)).double()


def sums_of_rows(model, x, y, owners, batch):
    """What an example's vector is: its rows' part of the mean over all rows, times the batch."""
    losses = F.cross_entropy(model(x), y, reduction="none")
    return [
        losses[owners == b].sum() * batch / len(y) if bool((owners == b).any()) else None for b in range(batch)
    ]  # fmt: skip


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("layers", [[], [nn.LayerNorm(H)], [nn.RMSNorm(H)], [nn.Linear(H, H, bias=False), nn.PReLU(H)]])
def test_rows_of_a_ragged_batch(layers, lengths):
    model = per_row(*layers)
    x, y, owners = ragged(lengths)
    batch = len(lengths)
    found = observed(model, F.cross_entropy(model(x), y), batch, owners)
    assert_close(found, one_by_one(model, sums_of_rows(model, x, y, owners, batch)))


def test_rows_in_any_sequence():
    model = per_row()
    x, y, owners = ragged([3, 1, 4, 2])
    owners = owners[torch.randperm(10)]
    found = observed(model, F.cross_entropy(model(x), y), 4, owners)
    assert_close(found, one_by_one(model, sums_of_rows(model, x, y, owners, 4)))


def test_rows_behind_a_dimension_of_one_and_a_loss_that_is_a_sum():
    model = per_row()
    x, y, owners = ragged([3, 1, 4, 2])
    loss = F.cross_entropy(model(x[None])[0], y, reduction="sum")
    found = observed(model, loss, 4, owners, reduction="sum")
    expected = one_by_one(
        model, [F.cross_entropy(model(x[owners == b]), y[owners == b], reduction="sum") for b in range(4)]
    )
    assert_close(found, expected)


def test_embedded_rows():
    model = nn.Sequential(nn.Embedding(9, H, padding_idx=0), nn.Linear(H, CLASSES)).double()
    _, y, owners = ragged([3, 1, 4, 2])
    x = torch.randint(9, (10,))
    found = observed(model, F.cross_entropy(model(x), y), 4, owners)
    assert_close(found, one_by_one(model, sums_of_rows(model, x, y, owners, 4)))


def test_rows_longer_than_a_weight_is_large():
    model = per_row()
    x, y, owners = ragged([60, 1, 2])
    found = observed(model, F.cross_entropy(model(x), y), 3, owners)
    assert_close(found, one_by_one(model, sums_of_rows(model, x, y, owners, 3)))


def test_a_node_without_a_rule_on_rows():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.product = nn.Bilinear(H, H, H)

        def forward(self, x):
            return self.product(x, x.sin())

    model = per_row(Product())
    x, y, owners = ragged([3, 1, 4, 2])
    found = observed(model, F.cross_entropy(model(x), y), 4, owners)
    assert_close(found, one_by_one(model, sums_of_rows(model, x, y, owners, 4)))


def test_rows_in_float32_and_under_autocast():
    model = per_row(nn.LayerNorm(H)).float()
    x, y, owners = ragged([3, 1, 4, 2])
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x.float()), y)
    found = observed(model, loss, 4, owners)
    expected = one_by_one(model, sums_of_rows(model, x.float(), y, owners, 4))
    assert (found - expected).abs().max() <= 0.05 * expected.abs().max()


# -- pooled to one vector per example: the index that pools says whose the rows are ---------------------------------


def by_index_add(h, owners, batch):
    return h.new_zeros(batch, h.shape[1]).index_add(0, owners, h)


def by_scatter_add(h, owners, batch):
    return h.new_zeros(batch, h.shape[1]).scatter_add(0, owners[:, None].expand_as(h), h)


def by_scatter_reduce(h, owners, batch):
    return h.new_zeros(batch, h.shape[1]).scatter_reduce(
        0, owners[:, None].expand_as(h), h, "amax", include_self=False
    )  # fmt: skip


def by_segments(h, owners, batch):
    return torch.segment_reduce(h, "sum", lengths=torch.bincount(owners, minlength=batch))


def by_pieces(h, owners, batch):
    pieces = h.split(torch.bincount(owners, minlength=batch).tolist())
    return torch.stack([piece.sum(0) for piece in pieces])


def by_padding(h, owners, batch):
    return pad_sequence(h.split(torch.bincount(owners, minlength=batch).tolist()), batch_first=True).sum(1)


def by_mask(h, owners, batch):
    counts = torch.bincount(owners, minlength=batch)
    mask = torch.arange(int(counts.max())) < counts[:, None]
    padded = h.new_zeros(*mask.shape, h.shape[1])
    padded[mask] = h
    return padded.sum(1)


def by_matrix(h, owners, batch):
    return F.one_hot(owners, batch).to(h).T @ h


class Pooled(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.first, self.second, self.head = nn.Linear(C, H), nn.Linear(H, H), nn.Linear(H, CLASSES)
        self.double()

    def forward(self, x, owners, batch):
        h = self.second(self.first(x).tanh())
        return self.head(self.pool(h, owners, batch).tanh())


POOLS = [by_index_add, by_scatter_add, by_scatter_reduce, by_segments, by_pieces, by_padding, by_mask]


@pytest.mark.parametrize("lengths", [[3, 1, 4, 2], [2, 0, 3, 1], [1, 5], [2, 0, 1]])
@pytest.mark.parametrize("pool", POOLS, ids=lambda p: p.__name__)
def test_rows_that_are_pooled_need_no_name(pool, lengths):
    model = Pooled(pool)
    x, _, owners = ragged(lengths)
    y = torch.randint(CLASSES, (len(lengths),))

    def alone(b):
        mine = owners == b
        return F.cross_entropy(model(x[mine], torch.zeros(int(mine.sum()), dtype=torch.int64), 1), y[b : b + 1])

    found = observed(model, F.cross_entropy(model(x, owners, len(lengths)), y), len(lengths))
    assert_close(found, one_by_one(model, [alone(b) for b in range(len(lengths))]))


@pytest.mark.parametrize("pool", [by_index_add, by_matrix], ids=lambda p: p.__name__)
def test_rows_that_are_pooled_may_be_named(pool):
    model = Pooled(pool)
    x, _, owners = ragged([3, 1, 4, 2])
    y = torch.randint(CLASSES, (4,))
    expected = observed(model, F.cross_entropy(model(x, owners, 4), y), 4)
    assert_close(observed(model, F.cross_entropy(model(x, owners, 4), y), 4, owners), expected)


class Messages(nn.Module):
    """A graph network: nodes of several graphs in one axis, edges as two lists of nodes."""

    def __init__(self):
        super().__init__()
        self.first, self.message, self.head = nn.Linear(C, H), nn.Linear(2 * H, H), nn.Linear(H, CLASSES)
        self.double()

    def forward(self, x, source, target, owners, batch):
        h = self.first(x).tanh()
        sent = self.message(torch.cat([h[source], h[target]], 1)).tanh()
        h = h + torch.zeros_like(h).index_add(0, target, sent)
        return self.head(by_index_add(h, owners, batch))


def test_graphs_of_nodes_and_edges_in_one_batch():
    model = Messages()
    x, _, owners = ragged([3, 2, 4])
    y = torch.randint(CLASSES, (3,))
    source, target = torch.tensor([0, 1, 2, 3, 5, 6, 8, 8]), torch.tensor([1, 2, 0, 4, 6, 7, 5, 7])
    first = [0, 3, 5]

    def alone(b):
        mine, own = owners == b, owners[source] == b
        graph = (x[mine], source[own] - first[b], target[own] - first[b], torch.zeros(int(mine.sum())).long(), 1)
        return F.cross_entropy(model(*graph), y[b : b + 1])

    found = observed(model, F.cross_entropy(model(x, source, target, owners, 3), y), 3)
    assert_close(found, one_by_one(model, [alone(b) for b in range(3)]))


# -- attention over all rows, which the mask keeps apart ------------------------------------------------------------


class BlockAttention(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)
        self.double()

    def forward(self, x, owners):
        mask = owners[:, None] == owners
        q, k, v = self.into(x).view(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
        else:
            scores = q @ k.transpose(1, 2) / q.shape[2] ** 0.5
            mixed = scores.masked_fill(~mask, -torch.inf).softmax(2) @ v
        return self.head(self.norm(x + self.out(mixed.transpose(0, 1).flatten(1))))


@pytest.mark.parametrize("lengths", [[3, 1, 4, 2], [1, 3], [2, 0, 1, 3], [5, 3]])
@pytest.mark.parametrize("fused", [True, False])
def test_attention_over_rows_that_a_mask_keeps_apart(fused, lengths):
    # Heads, width of a head and all of it: some are as many as the rows.
    model = BlockAttention(8, 2, fused)
    _, y, owners = ragged(lengths)
    x, batch = torch.randn(len(y), 8, dtype=torch.float64), len(lengths)

    def alone(b):
        mine = owners == b
        if not bool(mine.any()):
            return None
        return F.cross_entropy(model(x[mine], owners[mine]), y[mine], reduction="sum") * batch / len(y)

    found = observed(model, F.cross_entropy(model(x, owners), y), batch, owners)
    assert_close(found, one_by_one(model, [alone(b) for b in range(batch)]))


def test_torch_attention_on_rows():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    model = nn.ModuleDict({"layer": layer, "head": nn.Linear(8, CLASSES)}).double()
    _, y, owners = ragged([3, 1, 4, 2])
    x = torch.randn(10, 8, dtype=torch.float64)

    def losses(x, y, owners):
        h = model["layer"](x[:, None], src_mask=owners[:, None] != owners)[:, 0]
        return F.cross_entropy(model["head"](h), y, reduction="none")

    found = observed(model, losses(x, y, owners).mean(), 4, owners)
    alone = [losses(x[owners == b], y[owners == b], owners[owners == b]).sum() * 4 / 10 for b in range(4)]
    assert_close(found, one_by_one(model, alone))


# -- packed sequences ----------------------------------------------------------------------------------------------


class Packed(nn.Module):
    """Reads the last states, outputs padded again, or packed outputs."""

    def __init__(self, layer, reads):
        super().__init__()
        self.layer, self.reads = layer, reads
        self.first = nn.Linear(C, C)
        outer = (layer.proj_size or layer.hidden_size) * (2 if layer.bidirectional else 1)
        self.head = nn.Linear(outer, CLASSES)
        self.double()

    def forward(self, sequences):
        lengths = torch.tensor([len(s) for s in sequences])
        padded = self.first(pad_sequence(sequences, batch_first=True))
        packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        outputs, states = self.layer(packed)
        if self.reads == "packed":
            return self.head(outputs.data)
        if self.reads == "padded":
            return self.head(pad_packed_sequence(outputs, batch_first=True)[0].sum(1))
        if self.reads == "last":
            padded, ends = pad_packed_sequence(outputs, batch_first=True)
            return self.head(padded[torch.arange(len(ends)), ends - 1])
        last = states[0] if isinstance(states, tuple) else states
        sides = 2 if self.layer.bidirectional else 1
        return self.head(torch.cat(list(last[-sides:]), 1))


def sequences_of(lengths):
    return [torch.randn(n, C, dtype=torch.float64) for n in lengths]


PACKED_LENGTHS = [[3, 1, 4, 2], [2, 2, 2], [1, 1, 1], [1, 5]]


@pytest.mark.parametrize("lengths", PACKED_LENGTHS)
@pytest.mark.parametrize("reads", ["states", "padded", "last"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True, "num_layers": 2}], ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_need_no_name_where_the_loss_is_of_examples(kind, options, reads, lengths):
    model = Packed(kind(C, H, **options), reads)
    x, y = sequences_of(lengths), torch.randint(CLASSES, (len(lengths),))
    found = observed(model, F.cross_entropy(model(x), y), len(lengths))
    alone = [F.cross_entropy(model([one]), y[b : b + 1]) for b, one in enumerate(x)]
    assert_close(found, one_by_one(model, alone))


@pytest.mark.parametrize("lengths", PACKED_LENGTHS)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}], ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_with_a_loss_of_every_step(kind, options, lengths):
    model = Packed(kind(C, H, **options), "packed")
    x = sequences_of(lengths)
    y = [torch.randint(CLASSES, (n,)) for n in lengths]
    packed = pack_sequence(y, enforce_sorted=False)
    found = observed(model, F.cross_entropy(model(x), packed.data), len(x), cdgrab.example_of_row(packed))
    rest = len(x) / sum(lengths)
    alone = [F.cross_entropy(model([one]), labels, reduction="sum") * rest for one, labels in zip(x, y, strict=True)]
    assert_close(found, one_by_one(model, alone))


@pytest.mark.parametrize("kind", [cdgrab.Sampler, cdgrab.DistributedSampler])
def test_an_order_of_packed_sequences_is_that_of_padded_ones(kind):
    """Integers, so that no rounding tells them apart."""
    torch.manual_seed(3)
    data = [torch.randint(-2, 3, (n, C)).float() for n in torch.randint(1, 5, (12,)).tolist()]

    def order_of(is_packed):
        model = nn.Linear(C, 3, bias=False)
        sampler = kind(12, reduction="sum", seed=1, batch_axis=None if is_packed else 0)
        for _ in range(3):
            for batch in torch.utils.data.BatchSampler(sampler, 4, drop_last=False):
                sequences = [data[i] for i in batch]
                packed = pack_sequence(sequences, enforce_sorted=False)
                loss = model(packed.data if is_packed else pad_sequence(sequences, batch_first=True)).sum()
                rows = cdgrab.example_of_row(packed) if is_packed else None
                sampler.observe(loss, len(batch), example_of_row=rows)
                loss.backward()
        return list(sampler)

    packed, padded = order_of(True), order_of(False)
    assert packed == padded
    assert sorted(packed) == list(range(12))


# -- examples that go different ways --------------------------------------------------------------------------------


class Routed(nn.Module):
    def __init__(self, puts_back):
        super().__init__()
        self.puts_back = puts_back
        self.gate, self.head = nn.Linear(C, 3), nn.Linear(H, CLASSES)
        self.experts = nn.ModuleList(nn.Linear(C, H) for _ in range(3))
        self.double()

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(1).max(1)
        mixed = x.new_zeros(len(x), H)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero().squeeze(1)
            out = weight[mine, None] * expert(x[mine]).relu()
            if self.puts_back == "index_add":
                mixed = mixed.index_add(0, mine, out)
            elif self.puts_back == "index_put":
                mixed = mixed.index_put((mine,), out)
            else:
                mixed[chosen == number] = out
        return self.head(mixed)


@pytest.mark.parametrize("puts_back", ["index_add", "index_put", "mask"])
@pytest.mark.parametrize("batch", [2, 5, 9])
def test_examples_that_are_routed_to_one_expert_each(batch, puts_back):
    model = Routed(puts_back)
    first = nn.Linear(C, C).double()
    both = nn.ModuleList([first, model])
    x, y = torch.randn(batch, C, dtype=torch.float64), torch.randint(CLASSES, (batch,))
    found = observed(both, F.cross_entropy(model(first(x)), y), batch)
    alone = [F.cross_entropy(model(first(x[b : b + 1])), y[b : b + 1]) for b in range(batch)]
    assert_close(found, one_by_one(both, alone))


@pytest.mark.parametrize("goes", [[0, 1, 0], [1, 1, 1], [0, 0, 0]])
def test_an_expert_that_no_example_goes_to_has_no_share(goes):
    experts = nn.ModuleList(nn.Sequential(nn.Linear(C, H), nn.Unflatten(1, (2, 3)), nn.LayerNorm(3)) for _ in range(2))
    model = nn.ModuleList([experts, nn.Linear(H, CLASSES)]).double()
    x, y = torch.randn(3, C, dtype=torch.float64), torch.randint(CLASSES, (3,))

    def losses(x, y, goes):
        mixed = x.new_zeros(len(x), H)
        for number, expert in enumerate(experts):
            mine = (goes == number).nonzero().squeeze(1)
            mixed = mixed.index_add(0, mine, expert(x[mine]).flatten(1))
        return F.cross_entropy(model[1](mixed), y, reduction="none")

    goes = torch.tensor(goes)
    alone = [losses(x[b : b + 1], y[b : b + 1], goes[b : b + 1])[0] for b in range(3)]
    assert_close(observed(model, losses(x, y, goes).mean(), 3), one_by_one(model, alone))


@pytest.mark.parametrize("moved", [lambda h: h.flip(0), lambda h: h[torch.tensor([2, 0, 3, 1])]])
def test_examples_are_counted_as_the_loss_has_them(moved):
    model = per_row()
    x, y, _ = ragged([1, 1, 1, 1])

    def losses():
        return F.cross_entropy(model[1:](moved(model[0](x))), y, reduction="none")

    assert_close(observed(model, losses().mean(), 4), one_by_one(model, losses()))


def test_a_sorted_batch_through_a_fused_lstm():
    layer, head = nn.LSTM(C, H), nn.Linear(H, CLASSES)
    model = nn.ModuleList([layer, head])
    x, y = torch.randn(5, 3, C), torch.randint(CLASSES, (5,))
    to_and_fro = torch.tensor([3, 1, 4, 0, 2])

    def logits(x, there):
        out = layer(x[there].transpose(0, 1))[0][-1]
        return head(out[torch.argsort(there)])

    found = observed(model, F.cross_entropy(logits(x, to_and_fro), y), 5, strict=True)
    alone = [F.cross_entropy(logits(x[b : b + 1], torch.tensor([0])), y[b : b + 1]) for b in range(5)]
    expected = one_by_one(model, alone)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([0, 0, 1, 2, 2], r"example_of_row\[3\] is 2; 0 to 1 are allowed, in a batch of 2"),
        ([0, 0, 1, -1, 1], r"example_of_row\[3\] is -1; 0 to 1 are allowed"),
        ([0.0, 0.0, 1.0, 1.0, 1.0], "example_of_row holds torch.float32; whole numbers are needed"),
        ([[0, 0, 1, 1, 1]], r"a tensor of Long of shape \(1x5\); one integer for each row"),
        ([True, False, True, True, True], "example_of_row holds torch.bool; whole numbers are needed"),
        ([], "one integer for each row"),
        ([0, 0, 1, 1], "no axis of what"),
    ],
)
def test_a_list_that_names_no_rows_is_refused(owners, message):
    model = per_row()
    x, y, _ = ragged([2, 3])
    with pytest.raises(cdgrab.UserError, match=message):
        observed(model, F.cross_entropy(model(x), y), 2, torch.tensor(owners))


def test_a_list_of_another_length_than_any_axis_is_refused():
    model = Pooled(by_index_add)
    x, _, owners = ragged([3, 1, 4, 2])
    loss = F.cross_entropy(model(x, owners, 4), torch.randint(CLASSES, (4,)))
    with pytest.raises(cdgrab.UserError, match="no axis of 9 rows has them of the examples that example_of_row says"):
        observed(model, loss, 4, owners[:-1])


def test_a_list_that_contradicts_the_graph_is_refused():
    model = Pooled(by_index_add)
    x, _, owners = ragged([3, 1, 4, 2])
    loss = F.cross_entropy(model(x, owners, 4), torch.randint(CLASSES, (4,)))
    with pytest.raises(cdgrab.UserError, match="no axis of 10 rows has them of the examples that example_of_row says"):
        observed(model, loss, 4, owners.flip(0))


def test_as_many_rows_as_examples_in_another_sequence_are_refused_where_the_loss_may_be_of_either():
    model = Pooled(by_matrix)
    x, _, owners = ragged([2, 0, 1])
    y = torch.randint(CLASSES, (3,))
    with pytest.raises(cdgrab.UserError, match="observe the vector of the examples' losses"):
        observed(model, F.cross_entropy(model(x, owners, 3), y), 3, owners)
    losses = F.cross_entropy(model(x, owners, 3), y, reduction="none")
    geometry = cdgrab.GradientGeometry(parameters=model)
    geometry.observe(losses, 3, example_of_row=owners)
    losses.sum().backward()
    again = F.cross_entropy(model(x, owners, 3), y, reduction="none")
    assert_close(named(model, geometry), one_by_one(model, again))


def test_examples_that_an_index_mixes_are_refused():
    model = per_row()
    x, y, _ = ragged([1, 1, 1, 1])
    h = model[0](x)
    loss = F.cross_entropy(model[1:](h + h[torch.tensor([1, 0, 3, 2])]), y)
    with pytest.raises(cdgrab.UserError, match="the examples stand in two places"):
        observed(model, loss, 4)
