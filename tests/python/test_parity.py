# SPDX-License-Identifier: Apache-2.0
"""Side by side with the published grab-sampler: the same gradients, the same orders."""

import functools
from dataclasses import dataclass

import mnist
import pytest
import torch
import torch.nn.functional as F
from grab_sampler_shim import published, published_sampler
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

import cdgrab

EPOCHS = 5


def logistic():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(28 * 28, 10))


def lenet():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 5, padding=2),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(6, 16, 5),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 5 * 5, 120),
        torch.nn.ReLU(),
        torch.nn.Linear(120, 84),
        torch.nn.ReLU(),
        torch.nn.Linear(84, 10),
    )


MODELS = {"logistic": (logistic, 320, 0.1), "lenet": (lenet, 208, 0.05)}  # made by, examples, rate


class Training:
    """A model on MNIST in float64, whose per-example gradients are computed once for whoever wants them."""

    def __init__(self, name):
        make, self.n, self.rate = MODELS[name]
        x, y = mnist.load(self.n)
        self.dataset = TensorDataset(x, y, torch.arange(self.n))
        self.model = model = make().double()
        self.params = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.gradients = vmap(
            grad(lambda params, x, y: F.cross_entropy(functional_call(model, params, (x[None],)), y[None])),
            in_dims=(None, 0, 0),
        )

    def loss(self, x, y):
        """Of an ordinary loop, at the present weights."""
        self.model.load_state_dict(self.params)  # in place: observe() knows a parameter by its tensor
        return F.cross_entropy(self.model(x), y)

    def step(self, gradients):
        self.params = {name: p - self.rate * gradients[name].mean(0) for name, p in self.params.items()}


@dataclass
class Rule:
    """What decides, for replay(): `block` examples against accumulators that stand still meanwhile."""

    block: int
    levels: int = 1
    pairs: bool = False
    normalize: bool = False


def replay(rows, rule):
    """The published rule as a dull loop: of each row the leaf it ends in, and on the way |<x,s>| / |x||s|."""
    s = rows.new_zeros(2**rule.levels - 1, rows.shape[1])
    leaves, margins = [0] * len(rows), [[] for _ in rows]

    def down(node, members, level):
        if level == rule.levels or not members:
            return
        x = rows[members[0::2]] - rows[members[1::2]] if rule.pairs else rows[members]
        products = x @ s[node]
        lengths = x.norm(dim=1) * s[node].norm()
        plus = products < 0
        s[node] += torch.where(plus, 1.0, -1.0).to(x) @ x
        sides = [[], []]
        for i, member in enumerate(members):
            pair, second = divmod(i, 2) if rule.pairs else (i, 0)
            bit = int(not plus[pair]) ^ second
            leaves[member] = 2 * leaves[member] + bit
            margins[member].append((products[pair].abs() / lengths[pair].clamp(min=1e-300)).item())
            sides[bit].append(member)
        down(2 * node + 1, sides[0], level + 1)
        down(2 * node + 2, sides[1], level + 1)

    for begin in range(0, len(rows), rule.block):
        down(0, list(range(begin, min(begin + rule.block, len(rows)))), 0)
    return leaves, margins


def fold(visited, leaves):
    """The next order: leaf after leaf, odd ones backwards."""
    order = []
    for leaf in range(max(leaves) + 1):
        members = [example for example, at in zip(visited, leaves, strict=True) if at == leaf]
        order += members if leaf % 2 == 0 else members[::-1]
    return order


@dataclass
class Epoch:
    """What an epoch left behind: enough to say why the order made from it differs."""

    visited: list
    rows: torch.Tensor
    codes: list  # ours; a leaf's is twice its number

    def first_divergence(self, rule, mean, their_next):
        rows = F.normalize(self.rows, dim=1) if rule.normalize else self.rows
        leaves, margins = replay(rows - mean, rule)
        sided = "theirs" if fold(self.visited, leaves) == their_next else "neither"
        for position, (ours, dull) in enumerate(zip(self.codes, leaves, strict=True)):
            if ours != 2 * dull:
                shifts = range(rule.levels, 0, -1)  # from the root's bit down
                level = next(at for at, shift in enumerate(shifts) if ours >> shift != 2 * dull >> shift)
                return (
                    f"the first sign that differs is that of example {self.visited[position]} at position {position}, "
                    f"level {level}, margin {margins[position][level]:.3e}; the dull loop agrees with {sided}"
                )
        return f"no sign differs from those of the dull loop, which agrees with {sided}"


def train_both(training, theirs, ours, batch_size, rule, centred, by_loss=False):
    """EPOCHS epochs with both in step; the orders are compared before each, and that after the last.

    Ours takes the gradients that theirs takes or, `by_loss`, its own from the backward of the loss.
    """
    loaders = [DataLoader(training.dataset, batch_size=batch_size, sampler=sampler) for sampler in (theirs, ours)]
    mean = next_mean = 0.0
    last = None
    orders = []

    def compare(number, their_order, our_order):
        if their_order == our_order:
            return
        place = next(i for i, (a, b) in enumerate(zip(their_order, our_order, strict=True)) if a != b)
        why = last.first_divergence(rule, mean, their_order) if last else "initial orders"
        raise AssertionError(f"the orders of epoch {number} differ from place {place} on: {why}")

    for number in range(EPOCHS):
        visited, rows = [], []
        for (x, y, their_batch), (_, _, our_batch) in zip(*loaders, strict=True):
            if not visited:
                compare(number, theirs.sorter.orders.tolist(), ours.current_order().tolist())
                mean = next_mean
            assert their_batch.tolist() == our_batch.tolist()
            gradients = training.gradients(training.params, x, y)
            theirs.step(gradients)
            if by_loss:
                loss = training.loss(x, y)
                ours.observe(loss, len(x))
                loss.backward()
            else:
                ours.step(gradients)
            training.step(gradients)
            visited += our_batch.tolist()
            rows.append(torch.cat([g.flatten(1) for g in gradients.values()], dim=1))
        last = Epoch(visited, torch.cat(rows), ours.state_dict()["codes"].tolist())
        if centred:
            seen = F.normalize(last.rows, dim=1) if rule.normalize else last.rows
            next_mean = seen.mean(0)
        orders.append(visited)
    compare(EPOCHS, list(theirs), list(ours))
    assert all(sorted(order) == list(range(training.n)) for order in orders)
    assert len({tuple(order) for order in orders}) == EPOCHS
    return orders


CASES = {  # balance_type and options of theirs, our order, batch size, what decides
    "mean": ({}, "mean", 16, Rule(1)),
    "mean, short last batch": ({}, "mean", 15, Rule(1)),
    "mean, normalized": ({"normalize_grads": True}, "mean; normalize", 16, Rule(1, normalize=True)),
    "pair": ({}, "pair", 16, Rule(2, pairs=True)),
    "pair, odd batches": ({}, "pair", 15, Rule(2, pairs=True)),
    "pair, normalized": ({"normalize_grads": True}, "pair; normalize", 16, Rule(2, pairs=True, normalize=True)),
    "recursive": ({}, "recursive", 16, Rule(1, 6)),
    "recursive, depth": ({"depth": 2}, "recursive; depth=2", 15, Rule(1, 3)),
    "recursive-pair, 2": ({"batch_size": 2}, "recursive-pair; block=2", 2, Rule(2, 1, pairs=True)),
    "recursive-pair, 16": ({"batch_size": 16}, "recursive-pair; block=16", 16, Rule(16, 4, pairs=True)),
    "recursive-pair, 64": ({"batch_size": 64}, "recursive-pair; block=64", 64, Rule(64, 6, pairs=True)),
}


def make_both(training, balance_type, options, order):
    theirs = published_sampler(training.dataset, training.params, balance_type=balance_type, **options)
    ours = cdgrab.Sampler(training.dataset, order=order, initial_order=theirs.sorter.orders)
    return theirs, ours


@pytest.mark.parametrize(
    ("model", "case"),
    [("logistic", case) for case in CASES]
    + [("lenet", case) for case in ("mean", "pair", "recursive", "recursive-pair, 16")],
)
def test_orders_are_those_of_the_published_sampler(model, case):
    options, order, batch_size, rule = CASES[case]
    training = Training(model)
    theirs, ours = make_both(training, case.partition(",")[0], options, f"{order}; tie=minus")
    train_both(training, theirs, ours, batch_size, rule, centred=not rule.pairs)


@pytest.mark.parametrize(("model", "case"), [("logistic", "mean"), ("logistic", "pair"), ("lenet", "pair")])
def test_observing_the_loss_gives_the_orders_that_vmap_and_the_published_sampler_give(model, case):
    options, order, batch_size, rule = CASES[case]
    training = Training(model)
    theirs, ours = make_both(training, case, options, f"{order}; tie=minus")
    train_both(training, theirs, ours, batch_size, rule, centred=not rule.pairs, by_loss=True)


def test_without_the_tie_rule_the_second_epoch_is_the_mirror_image_and_the_report_says_why():
    options, order, batch_size, rule = CASES["pair"]
    training = Training("logistic")
    theirs, ours = make_both(training, "pair", options, order)
    with pytest.raises(AssertionError, match=r"epoch 1 .* position 0, level 0, margin 0.000e\+00; .* with theirs"):
        train_both(training, theirs, ours, batch_size, rule, centred=False)
    assert theirs.sorter.orders.tolist() == ours.current_order().tolist()[::-1]


# -- batch: the published code balances centred gradients against a sum of uncentred ones ------------------------


@pytest.fixture
def _double_by_default():
    """The published batch adds up signs in the default type, and raises when the gradients have another."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@functools.cache
def corrected_batch_balance():
    """Theirs, with the gradients that are added to the accumulator centred as those that are compared with it."""

    class Corrected(published().sorter.beta.BatchBalance):
        @torch.no_grad()
        def _step(self, grads, b, *args, **kwargs):
            before = self.acc_next.clone()
            begin = self.idx
            super()._step(grads, b, *args, **kwargs)
            plus = torch.isin(self.orders[begin : self.idx], self.next_orders[: self.left])
            signs = torch.where(plus, 1.0, -1.0).to(grads)
            self.acc_next = before + signs @ (grads - self.run_sum)

    return Corrected


@pytest.mark.usefixtures("_double_by_default")
@pytest.mark.parametrize(("model", "batch_size"), [("logistic", 16), ("logistic", 15), ("lenet", 16)])
def test_batch_agrees_until_there_is_a_mean_and_for_ever_when_theirs_is_corrected(model, batch_size):
    def run(corrected):
        torch.manual_seed(0)
        training = Training(model)
        theirs, ours = make_both(training, "batch", {"batch_size": batch_size}, "batch; tie=minus")
        if corrected:
            initial = theirs.sorter.orders
            theirs.sorter = corrected_batch_balance()(theirs.n, theirs.d, batch_size=batch_size, dtype=torch.float64)
            theirs.sorter.orders, theirs.sorter.next_orders = initial.clone(), initial.clone()
        train_both(training, theirs, ours, batch_size, Rule(batch_size), centred=True)

    run(corrected=True)
    with pytest.raises(AssertionError, match=r"the orders of epoch 2 differ .* agrees with neither"):
        run(corrected=False)


@pytest.mark.usefixtures("_double_by_default")
def test_a_constant_in_all_gradients_ruins_the_published_batch_and_not_ours():
    n, dim, batch_size, rounds = 1024, 16, 16, 10
    rows = torch.randn(n, dim, dtype=torch.float64) / dim**0.5

    def bound(order, rows):
        """How far the sum of the centred rows strays from zero at worst."""
        return (rows - rows.mean(0))[order].cumsum(0).norm(dim=1).max().item()

    def run(sampler, rows):
        for _ in range(rounds):
            for batch in torch.utils.data.BatchSampler(sampler, batch_size, drop_last=False):
                sampler.step({"": rows[batch]})
        return bound(list(sampler), rows)

    def theirs(rows):
        return run(published_sampler(rows, {"": rows[0]}, balance_type="batch", batch_size=batch_size), rows)

    def ours(rows):
        return run(cdgrab.Sampler(n, "batch; tie=minus"), rows)

    random = bound(torch.randperm(n), rows)
    shifted = rows + 10.0
    assert max(theirs(rows), ours(rows), ours(shifted)) < random / 2
    assert theirs(shifted) > random * 2
