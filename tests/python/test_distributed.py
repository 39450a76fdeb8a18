# SPDX-License-Identifier: Apache-2.0
"""cdgrab.DistributedSampler: the cases of distributed_cases.py on real ranks, and what one process shows."""

import copy
import gc
import os
import pickle
import weakref
from pathlib import Path

import distributed_cases
import pytest
import ranks
import torch
import torch.distributed as dist
from order_server import integer_gradient, next_orders
from torch.utils.data import BatchSampler
from training import Task, flat

import cdgrab

SCRIPT = Path(distributed_cases.__file__)
SUITE = Path(cdgrab.__file__).parents[3] / "tests" / "torch" / "libcdgrab_c10d_suite.so"
RANKS = (2, 3)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """By number of ranks. Two before three: these go on with what those have written."""
    folder = tmp_path_factory.mktemp("ranks")
    os.environ["CDGRAB_C10D_SUITE"] = str(SUITE)
    return {count: ranks.finish(ranks.start(count, SCRIPT, folder), folder, count) for count in RANKS}


@pytest.mark.parametrize("count", RANKS)
@pytest.mark.parametrize("case", distributed_cases.CASES)
def test_on_real_ranks(outcomes, count, case):
    """Each case is a sentence, and holds on every rank; the one that is killed says nothing."""
    said = outcomes[count].get(case)
    assert said is not None, outcomes[count]["output"][0]
    assert [text for text in said if text] == []
    assert len(said) == count - (case == "a_killed_rank_makes_the_others_stop")


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("order", ["cd-pair", "id-pair"])
def test_one_process_with_many_workers_has_the_order_of_the_order_server(workers, order):
    n = 4 * workers + 9
    sampler = cdgrab.DistributedSampler(n, order=order, workers=workers, seed=1)
    orders = [sampler.current_order(w).tolist() for w in range(workers)]
    for epoch in range(3):
        for batch in BatchSampler(sampler, 5, drop_last=False):
            sampler.step(torch.stack([integer_gradient(e, epoch) for e in batch]))
        sampler.end_epoch()
        seen = [[(e, integer_gradient(e, epoch)) for e in own] for own in orders]
        orders = next_orders(orders, seen, order == "cd-pair")
        assert [sampler.current_order(w).tolist() for w in range(workers)] == orders


def test_one_worker_is_the_sampler_of_one_process():
    ours, theirs = Task(), Task()
    many, one = cdgrab.DistributedSampler(23, seed=7), cdgrab.Sampler(23, "pair", seed=7)
    for _ in range(3):
        assert ours.epoch(many, ours.loader(many, num_workers=1)) == theirs.epoch(one)


@pytest.mark.parametrize("named", [False, True])
def test_a_batch_may_be_named(named):
    task = Task()
    sampler = cdgrab.DistributedSampler(task.dataset, seed=7)
    task.epoch(sampler, named=named)
    assert sampler.report()["observed"] == 23
    sampler.end_epoch()
    expected = Task()
    one = cdgrab.Sampler(23, "pair", seed=7)
    expected.epoch(one)
    assert sampler.current_order().tolist() == one.next_order().tolist()


def test_repeats_of_several_workers_are_not_balanced():
    """Workers of 8, 8 and 7 examples, in batches of 4: the last batch of worker 2 has a repeat."""
    task = Task(lr=0.0)
    sampler = cdgrab.DistributedSampler(23, workers=3)
    visited = flat(task.epoch(sampler))
    assert len(visited) == len(sampler) == 24
    assert set(visited) == set(range(23))
    assert [sampler.report(w)["observed"] for w in range(3)] == [8, 8, 7]


def test_batches_of_two_workers_are_refused_before_anything_is_trained():
    """Two workers of 10 examples, in batches of 4; d-rr looks at none."""
    task = Task(20)
    sampler = cdgrab.DistributedSampler(20, workers=2)
    with pytest.raises(cdgrab.UserError, match=r"batches of 4, .*\[10, 10\].*drop_last=True"):
        task.epoch(sampler)
    assert sampler.report(0)["observed"] == 0
    batches = task.epoch(sampler, task.loader(sampler, drop_last=True))
    assert [sorted({e % 2 for e in batch}) for batch in batches] == [[0], [1], [0], [1]]
    assert len(task.epoch(sampler, task.loader(sampler, 5))) == 4
    sampler = cdgrab.DistributedSampler(20, order="d-rr", workers=2)
    task.epoch(sampler)
    assert [sampler.report(worker)["observed"] for worker in range(2)] == [10, 10]


def test_a_peek_at_the_loader_costs_nothing():
    task = Task()
    sampler = cdgrab.DistributedSampler(23)
    first = next(iter(task.loader(sampler)))[0].tolist()
    assert task.epoch(sampler)[0] == first
    assert sampler.epoch == 0


@pytest.mark.parametrize("order", ["cd-pair", "d-rr"])
def test_only_what_is_observed_ends_an_epoch(order, recwarn):
    """d-rr, which needs no observing, aside; and to forget it is told."""
    sampler = cdgrab.DistributedSampler(8, order=order)
    passes = [list(sampler) for _ in range(4)]
    if order == "d-rr":
        assert sampler.epoch == 3
        assert passes[0] != passes[1]
        assert len(recwarn) == 0
    else:
        assert sampler.epoch == 0
        assert passes[0] == passes[1]
        assert ["nothing observed" in str(warning.message) for warning in recwarn] == [True]


@pytest.mark.parametrize("stop", [1, 3, 5, 6])
@pytest.mark.parametrize("drop_last", [False, True])
def test_resuming_equals_never_stopping(stop, drop_last):
    def loader(task, sampler):
        return task.loader(sampler, drop_last=drop_last, num_workers=int(stop == 3))

    task, sampler = Task(), cdgrab.DistributedSampler(23, seed=1)
    expected = [batch for _ in range(3) for batch in task.epoch(sampler, loader(task, sampler))]
    task, sampler = Task(), cdgrab.DistributedSampler(23, seed=1)
    batches = len(loader(task, sampler))
    if stop > batches:
        pytest.skip("dropped")
    seen = task.epoch(sampler, loader(task, sampler))
    for number, batch in enumerate(loader(task, sampler), start=1):
        seen.append(task.step(sampler, batch))
        if number == stop:
            break
    resumed, other = Task(), cdgrab.DistributedSampler(23, seed=99)
    resumed.load_state_dict(task.state_dict())
    other.load_state_dict(sampler.state_dict())
    if stop < batches:
        seen += resumed.epoch(other, loader(resumed, other))
    seen += resumed.epoch(other, loader(resumed, other))
    assert seen == expected


def test_what_changes_with_other_workers_is_logged(caplog):
    sampler = cdgrab.DistributedSampler(23, workers=3)
    sampler.step(torch.ones(4, 2), indices=next(iter(BatchSampler(sampler, 4, drop_last=False))))
    other = cdgrab.DistributedSampler(23, workers=2)
    other.load_state_dict(sampler.global_state_dict())
    assert "2 workers took over from 3" in caplog.text


def test_units_of_other_workers_are_taken_at_the_beginning_and_the_end_of_an_epoch():
    sampler = cdgrab.DistributedSampler(24, order="cd-pair; unit=4", workers=3)
    other = cdgrab.DistributedSampler(24, order="cd-pair; unit=4", workers=2)
    other.load_state_dict(sampler.global_state_dict())
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    next(iter(BatchSampler(sampler, 4, drop_last=False)))
    sampler.observe_microbatch([parameter])
    with pytest.raises(cdgrab.StateMismatch, match=r"in the middle of an epoch, with unit=4.* call end_epoch"):
        other.load_state_dict(sampler.global_state_dict())
    for _ in BatchSampler(sampler, 4, drop_last=False):
        sampler.observe_microbatch([parameter])
    other.load_state_dict(sampler.global_state_dict())
    assert len(list(other)) == 24
    assert other.epoch == sampler.epoch + 1


def test_files_are_those_of_the_library(tmp_path):
    sampler = cdgrab.DistributedSampler(23, workers=3)
    sampler.save(tmp_path / "order.cdgrab")
    other = cdgrab.DistributedSampler(23, workers=3, seed=5)
    other.load(tmp_path / "order.cdgrab")
    assert other.order_hash() == sampler.order_hash()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shuffle": False}, "the order is learnt"),
        ({"num_replicas": 2}, "rank 0 of 1"),
        ({"rank": 1}, "rank 0 of 1"),
        ({"order": "pair"}, "cd-pair, id-pair or d-rr"),
        ({"padding": "none"}, "'pad', 'drop', 'uneven' are allowed"),
        ({"padding": "pad", "drop_last": True}, "goes with drop_last"),
        ({"workers": 2, "shares": [[0, 1, 2]]}, "leave workers out"),
        ({"workers": 0}, "workers"),
        ({"workers": "2"}, "workers is '2'; a whole number"),
        ({"seed": 1.5}, "seed is 1.5; a whole number"),
        ({"seed": 2**63}, "a whole number of 64 bits"),
        ({"timeout": 0}, "timeout is 0; seconds"),
        ({"timeout": float("inf")}, "timeout is inf; seconds"),
        ({"hold_limit": -5}, "hold_limit is -5; a whole number, 0 or more"),
        ({"shares": [[0, 1.5], [2]]}, "the share of worker 0"),
        ({"dataset": -3}, "dataset is -3; a whole number, 0 or more"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(cdgrab.UserError, match=words):
        cdgrab.DistributedSampler(**{"dataset": 3, **arguments})


def test_wrong_calls_are_refused():
    task = Task()
    sampler = cdgrab.DistributedSampler(23)
    with pytest.raises(cdgrab.UserError, match="0 examples are handed out"):
        sampler.observe(torch.zeros(()), 4)
    with pytest.raises(cdgrab.UserError, match="one of the two"):
        sampler.observe(torch.zeros(()))
    with pytest.raises(cdgrab.UserError, match="unit="):
        sampler.register_comm_hook(task.model)
    with pytest.raises(cdgrab.UserError, match="every rank has one worker"):
        cdgrab.DistributedSampler(23, workers=2).global_order(4)
    with pytest.raises(cdgrab.UserError, match="block is"):
        sampler.global_order(2.5)
    for nothing in ([], {}, torch.ones(())):
        with pytest.raises(cdgrab.UserError, match="one row per example"):
            sampler.step(nothing)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(cdgrab.UserError, match="state_dict"):
            copied(sampler)
    with pytest.raises(cdgrab.StateMismatch, match="version"):
        sampler.load_state_dict({})
    first = iter(sampler)
    next(first)
    next(iter(sampler))
    with pytest.raises(cdgrab.UserError, match="newest"):
        next(first)


def test_a_sampler_is_made_after_the_group(monkeypatch):
    """Every rank would take itself for the only one, and train on everything."""
    early = cdgrab.DistributedSampler(8)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(cdgrab.UserError, match=r"WORLD_SIZE is 2.*call init_process_group first"):
        cdgrab.DistributedSampler(8)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pytest.raises(cdgrab.UserError, match="one of 2 now; call init_process_group first"):
        next(iter(early))


@pytest.mark.parametrize("how", ["sampler", "batch_sampler"])
def test_a_loader_that_keeps_its_own_state_is_refused(how):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    sampler = cdgrab.DistributedSampler(8)
    given = sampler if how == "sampler" else BatchSampler(sampler, 4, drop_last=False)
    with pytest.raises(cdgrab.UserError, match="StatefulDataLoader"):
        next(iter(stateful.StatefulDataLoader(range(8), **{how: given})))


def test_a_sampler_goes_with_its_last_reference():
    """And not when a collector runs, in a process that a loader has forked for instance."""
    task = Task(lr=0.0)
    sampler = cdgrab.DistributedSampler(23, overlap=True)
    task.epoch(sampler)
    task.epoch(sampler)
    there = weakref.ref(sampler)
    gc.disable()
    try:
        del sampler
        assert there() is None
    finally:
        gc.enable()


def test_shares_may_be_given():
    shares = [[0, 1, 2, 3, 4], [5, 6], []]
    sampler = cdgrab.DistributedSampler(7, shares=shares, padding="uneven")
    assert [sorted(sampler.current_order(w).tolist()) for w in range(3)] == shares
    assert sorted(sampler) == list(range(7))
