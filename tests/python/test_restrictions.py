# SPDX-License-Identifier: Apache-2.0
"""What the published grab-sampler refuses or loses, first on it and then on ours."""

import pickle

import pytest
import torch
from grab_sampler_shim import published_sampler
from torch.utils.data import DataLoader, TensorDataset

import cdgrab

DIM = 7
BALANCERS = ["mean", "pair", "batch", "recursive; depth=2", "recursive-pair; depth=2", "recursive-pair; block=8"]


@pytest.fixture(autouse=True)
def _double_by_default():
    """The published batch raises unless the gradients have the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def rows_of(n):
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(n)) + 1.0


def loader_of(sampler, rows, batch_size, **options):
    return DataLoader(TensorDataset(torch.arange(len(rows)), rows), batch_size, sampler=sampler, **options)


def run_epoch(sampler, loader, batches=None):
    """What was handed out; with `batches`, the loop breaks after so many."""
    visited = []
    for indices, gradients in loader:
        if batches is not None and len(visited) >= batches * loader.batch_size:
            break
        sampler.step({"weight": gradients})
        visited += indices.tolist()
    return visited


def published_of(rows, balance_type, batch_size):
    name = balance_type.partition(";")[0]
    blocks = {"batch_size": batch_size} if name in ("batch", "recursive-pair") else {}
    return published_sampler(rows, {"weight": rows[0]}, balance_type=name, **blocks)


def is_permutation(order, n):
    return sorted(order) == list(range(n))


# -- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("balance_type", "n", "batch_size", "words"),
    [("pair", 15, 4, "even"), ("recursive-pair", 16, 6, "power of 2"), ("recursive-pair", 18, 4, "n % batch_size")],
)
def test_the_published_sampler_refuses_sizes(balance_type, n, batch_size, words):
    with pytest.raises(AssertionError, match=words):
        published_of(rows_of(n), balance_type, batch_size)


@pytest.mark.parametrize(
    ("order", "n"),
    [(order, n) for order in BALANCERS for n in (0, 1, 2, 15, 16, 33) if "block" not in order or n % 8 == 0],
)
@pytest.mark.parametrize("batch_size", [1, 4, 5, 6, 64])
def test_any_number_of_examples_in_batches_of_any_size(order, n, batch_size):
    sampler = cdgrab.Sampler(n, order, seed=1)
    loader = loader_of(sampler, rows_of(n), batch_size)
    for _ in range(4):
        assert is_permutation(run_epoch(sampler, loader), n)
        assert is_permutation(sampler.next_order().tolist(), n)
        assert sampler.report()["observed"] == n


# -- epochs that are not seen to the end --------------------------------------------------------------------------


@pytest.mark.parametrize("order", BALANCERS)
def test_the_published_sampler_is_stuck_after_an_unfinished_epoch(order):
    rows = rows_of(32)

    def broken_off(sampler):
        run_epoch(sampler, loader_of(sampler, rows, 8), batches=2)

    def peeked_at(sampler):
        next(iter(loader_of(sampler, rows, 8)))

    for unfinished in (broken_off, peeked_at):
        sampler = published_of(rows, order, 8)
        unfinished(sampler)
        with pytest.raises((AssertionError, IndexError)):
            list(sampler)


@pytest.mark.parametrize("order", ["mean", "pair", "recursive"])
def test_the_published_sampler_is_stuck_after_a_dropped_tail(order):
    rows = rows_of(34)
    sampler = published_of(rows, order, 8)
    run_epoch(sampler, loader_of(sampler, rows, 8, drop_last=True))
    with pytest.raises(AssertionError):
        list(sampler)


@pytest.mark.parametrize("order", BALANCERS)
def test_an_epoch_broken_off_leaves_the_rest_in_its_order(order):
    n, rows = 32, rows_of(32)
    sampler = cdgrab.Sampler(n, order)
    loader = loader_of(sampler, rows, 8)
    first = sampler.current_order().tolist()
    assert run_epoch(sampler, loader, batches=2) == first[:16]
    assert sampler.report()["unobserved"] == 16

    following = sampler.next_order().tolist()
    assert is_permutation(following, n)
    assert [example for example in following if example in first[16:]] == first[16:]
    assert following != first
    with pytest.warns(UserWarning, match="not observed"):  # the loader had handed out one batch more
        assert run_epoch(sampler, loader) == following
    assert sampler.report()["unobserved"] == 0


@pytest.mark.parametrize("order", BALANCERS)
def test_a_peek_costs_nothing(order):
    rows = rows_of(32)
    plain, peeked = cdgrab.Sampler(32, order), cdgrab.Sampler(32, order)
    for _ in range(3):
        expected = run_epoch(plain, loader_of(plain, rows, 8))
        indices, _ = next(iter(loader_of(peeked, rows, 8)))
        assert indices.tolist() == expected[:8]
        assert run_epoch(peeked, loader_of(peeked, rows, 8)) == expected


@pytest.mark.parametrize("order", BALANCERS)
def test_a_dropped_tail_stays_unobserved_and_in_the_order(order):
    n = 36 if "block" not in order else 40
    batch_size = 16
    rows = rows_of(n)
    sampler = cdgrab.Sampler(n, order)
    loader = loader_of(sampler, rows, batch_size, drop_last=True)
    dropped = set()
    for _ in range(5):
        visited = run_epoch(sampler, loader)
        assert len(visited) == n - n % batch_size
        assert sampler.report()["unobserved"] == n % batch_size
        assert is_permutation(sampler.next_order().tolist(), n)
        dropped |= set(range(n)) - set(visited)
    assert len(dropped) > n % batch_size  # not the same ones for ever


# -- resuming -----------------------------------------------------------------------------------------------------


def test_the_published_sampler_has_no_state():
    assert not hasattr(published_of(rows_of(16), "mean", 4), "state_dict")


@pytest.mark.parametrize("order", ["mean", "pair"])
def test_the_published_sampler_cannot_be_pickled(order):
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(published_of(rows_of(16), order, 4))


def by_state_dict(sampler, order):
    other = cdgrab.Sampler(40, order, seed=99)
    other.load_state_dict(sampler.state_dict())
    return other


def by_pickle(sampler, _):
    return pickle.loads(pickle.dumps(sampler))


@pytest.mark.parametrize("order", BALANCERS)
@pytest.mark.parametrize("resumed", [by_state_dict, by_pickle])
@pytest.mark.parametrize("at", [0, 1, 3, 8])
def test_resuming_in_the_middle_of_an_epoch_and_of_a_pair_goes_on_as_if_never_stopped(order, resumed, at):
    n, batch_size, rows = 40, 5, rows_of(40)

    def run(interrupted):
        sampler = cdgrab.Sampler(n, order, seed=4)
        orders = [run_epoch(sampler, loader_of(sampler, rows, batch_size))]
        if interrupted:
            begun = run_epoch(sampler, loader_of(sampler, rows, batch_size), batches=at)
            sampler = resumed(sampler, order)
            orders.append(begun + run_epoch(sampler, loader_of(sampler, rows, batch_size)) if at < 8 else begun)
        for _ in range(len(orders), 4):
            orders.append(run_epoch(sampler, loader_of(sampler, rows, batch_size)))
        return orders

    assert run(interrupted=True) == run(interrupted=False)


# -- one gradient that is not a number ----------------------------------------------------------------------------


def herding_bound(order, rows):
    return (rows - rows.mean(0))[order].cumsum(0).norm(dim=1).max().item()


def poisoned_orders(sampler, n, epochs, place):
    """Orders of n examples, of which the one in this place of the first epoch had a NaN."""
    rows, orders = rows_of(n), []
    for epoch in range(epochs):
        visited = []
        for indices, gradients in loader_of(sampler, rows, 8):
            if epoch == 0 and len(visited) <= place < len(visited) + 8:
                gradients[place - len(visited), 2] = torch.nan
            sampler.step({"weight": gradients})
            visited += indices.tolist()
        orders.append(visited)
    return orders


def test_one_nan_ends_the_published_balancing_of_the_epoch_and_by_the_mean_of_the_next():
    n, place = 256, 9
    first, second, third, _ = poisoned_orders(published_of(rows_of(n), "mean", 8), n, 4, place)
    behind = first[place:]
    assert [example for example in second if example in behind] == behind[::-1]  # every sign is -
    assert third == second[::-1]

    first, second = poisoned_orders(published_of(rows_of(n), "pair", 8), n, 2, place)
    assert second[: n // 2][4:] == first[9::2]  # the same: the second of each pair comes first


@pytest.mark.parametrize("order", BALANCERS)
def test_one_nan_is_counted_and_the_rest_goes_on(order):
    n, place = 256, 9
    rows = rows_of(n)
    sampler = cdgrab.Sampler(n, order)
    first, second, *_, last = poisoned_orders(sampler, n, 10, place)
    assert is_permutation(second, n)
    behind = first[place:]
    assert [example for example in second if example in behind] not in (behind, behind[::-1])
    assert sampler.report()["not_finite"] == 0  # of the last epoch
    assert herding_bound(last, rows) < herding_bound(first, rows) / 2

    sampler = cdgrab.Sampler(n, order)
    poisoned_orders(sampler, n, 1, place)
    assert sampler.report()["observed"] == n
    assert sampler.report()["not_finite"] == 1
