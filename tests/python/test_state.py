# SPDX-License-Identifier: Apache-2.0
"""Resume equals never stopping: state_dict, files, torch.save, StatefulDataLoader, DCP."""

import time
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from training import Task, flat, through_torch

import cdgrab

ORDERS = ["pair", "mean", "batch", "recursive; depth=1", "recursive-pair; depth=1", "pair; sign=halving", "rr"]


def uninterrupted(order, epochs=3, workers=0):
    task = Task()
    sampler = cdgrab.Sampler(23, order, seed=2)
    loader = task.loader(sampler, num_workers=workers)
    stream = [flat(task.epoch(sampler, loader)) for _ in range(epochs)]
    return stream, [p.clone() for p in task.model.parameters()]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [(0, 1), (0, 6), (1, 3), (1, 5), (2, 2)])
def test_resume_equals_never_stopping(order, workers, stop):
    if order == "rr" and workers:
        pytest.skip("without observations a prefetching loader cannot know where training stands")
    expected, weights = uninterrupted(order)
    task = Task()
    sampler = cdgrab.Sampler(23, order, seed=2)
    stream = [[] for _ in range(3)]
    for epoch in range(stop[0] + 1):
        for count, batch in enumerate(task.loader(sampler, num_workers=workers), start=1):
            stream[epoch] += task.step(sampler, batch)
            if (epoch, count) == stop:
                break
    state = through_torch({"task": task.state_dict(), "sampler": sampler.state_dict()})

    task = Task(lr=99.0)
    task.load_state_dict(state["task"])
    sampler = cdgrab.Sampler(23, order, seed=7)
    sampler.load_state_dict(state["sampler"])
    iter(sampler), iter(sampler)  # loses nothing
    for epoch in range(stop[0] + (stop[1] == 6), 3):
        stream[epoch] += flat(task.epoch(sampler, task.loader(sampler, num_workers=workers)))
    assert stream == expected
    assert all(torch.equal(a, b) for a, b in zip(task.model.parameters(), weights, strict=True))


def dropping_loader(task, sampler, workers):
    return task.loader(sampler, drop_last=True, num_workers=workers)


def dropping_batches(task, sampler, workers):
    batches = cdgrab.BatchSampler(sampler, 4, drop_last=True)
    return DataLoader(task.dataset, batch_sampler=batches, num_workers=workers)


def dropping_stateful(task, sampler, workers):
    batches = cdgrab.BatchSampler(sampler, 4, drop_last=True)
    return StatefulDataLoader(task.dataset, batch_sampler=batches, num_workers=workers)


@pytest.mark.parametrize("order", ["pair", "rr"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [dropping_loader, dropping_batches, dropping_stateful])
@pytest.mark.parametrize("by_file", [False, True])
@pytest.mark.parametrize("in_the_loop", [False, True])
def test_an_epoch_whose_tail_is_dropped_resumes_without_an_empty_pass(
    tmp_path, order, workers, make, by_file, in_the_loop
):
    if order == "rr" and workers and make is not dropping_stateful:
        pytest.skip("without observations a prefetching loader cannot know where training stands")
    task = Task()
    sampler = cdgrab.Sampler(23, order)
    expected = [flat(task.epoch(sampler, make(task, sampler, workers))) for _ in range(4)]
    assert [len(epoch) for epoch in expected] == [20] * 4

    task = Task()
    sampler = cdgrab.Sampler(23, order)
    loader = make(task, sampler, workers)
    for epoch in expected:
        seen = []
        for batch in loader:
            seen += task.step(sampler, batch)
            if in_the_loop and len(seen) == 20:
                break
        assert seen == epoch
        state = sampler.state_dict()
        sampler.save(tmp_path / "state")
        position = loader.state_dict() if make is dropping_stateful else None
        sampler = cdgrab.Sampler(23, order)
        if by_file:
            sampler.load(tmp_path / "state")
        else:
            sampler.load_state_dict(state)
        loader = make(task, sampler, workers)
        if position is not None:
            loader.load_state_dict(position)


def test_an_empty_pass_after_a_load_is_explained():
    def foreign(sampler):
        batch = []
        for example in sampler:
            batch.append(example)
            if len(batch) == 4:
                yield batch
                batch = []

    task = Task()
    sampler = cdgrab.Sampler(23)
    task.epoch(sampler, DataLoader(task.dataset, batch_sampler=list(foreign(sampler))))
    other = cdgrab.Sampler(23)
    other.load_state_dict(sampler.state_dict())
    assert list(foreign(other)) == []
    with pytest.warns(UserWarning, match=r"none was observed.*cdgrab.BatchSampler"):
        assert len(list(foreign(other))) == 5


@pytest.mark.parametrize("order", ["pair", "mean"])
def test_batches_observed_out_of_order_are_not_handed_out_again_after_a_load(order):
    task = Task()
    sampler = cdgrab.Sampler(23, order)
    batches = list(task.loader(sampler))
    trained = [task.step(sampler, batches[k], named=True) for k in (0, 4, 2)]
    other = cdgrab.Sampler(23, order)
    other.load_state_dict(through_torch(sampler.state_dict()))
    rest = task.epoch(other, named=True)
    first_order = flat(batch[0].tolist() for batch in batches)
    done = set(flat(trained))
    assert flat(rest) == [example for example in first_order if example not in done]
    assert other.report()["observed"] == 23
    assert sorted(flat(task.epoch(other))) == list(range(23))
    assert other.epoch == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_peek_after_a_load_costs_nothing(workers):
    expected, _ = uninterrupted("pair", epochs=2)
    task = Task()
    sampler = cdgrab.Sampler(23, seed=2)
    seen = task.step(sampler, next(iter(task.loader(sampler))))
    other = cdgrab.Sampler(23)
    other.load_state_dict(sampler.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(task.loader(other)))
        for _ in range(2):
            seen += flat(task.epoch(other, task.loader(other, num_workers=workers)))
    assert seen == flat(expected)


def test_diagnostics_of_a_resumed_epoch_are_of_all_of_it():
    def sampler():
        return cdgrab.Sampler(23, record_herding=True, record_norms=True)

    whole, task = sampler(), Task()
    for _ in range(2):
        task.epoch(whole)
    resumed, task = sampler(), Task()
    for count, batch in enumerate(task.loader(resumed)):
        task.step(resumed, batch)
        if count == 2:
            break
    state = through_torch(resumed.state_dict())
    resumed = sampler()
    resumed.load_state_dict(state)
    for _ in range(2):
        task.epoch(resumed)
    assert resumed.herding_bound() == whole.herding_bound()
    assert resumed.norms().tolist() == whole.norms().tolist()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the loader's, of its own half
def test_a_stateful_loader_that_would_go_back_is_refused(workers):
    task = Task()
    sampler = cdgrab.Sampler(23)
    loader = StatefulDataLoader(task.dataset, batch_size=4, sampler=sampler, num_workers=workers)
    with pytest.raises(cdgrab.UserError, match=r"batch_sampler=cdgrab.BatchSampler"):
        iter(loader)


@pytest.mark.parametrize("order", ["pair", "mean", "pair; sketch=pca:3"])
def test_resume_after_every_step(order):
    expected, _ = uninterrupted(order, epochs=2)
    task = Task()
    sampler = cdgrab.Sampler(23, order, seed=2)
    stream = []
    for _ in range(12):
        batch = next(iter(task.loader(sampler)))
        stream += task.step(sampler, batch)
        state = through_torch(sampler.state_dict())
        sampler = cdgrab.Sampler(23, order)
        sampler.load_state_dict(state)
        assert_same_state(sampler.state_dict(), state)
    assert stream == flat(expected)


def assert_same_state(a, b):
    assert a.keys() == b.keys()
    for key, value in a.items():
        if key != "handed_out":  # where a loader stood becomes where training stands
            assert torch.equal(value, b[key]) if isinstance(value, torch.Tensor) else value == b[key], key


def test_states_are_plain_and_keep_their_shapes():
    task = Task()
    sampler = cdgrab.Sampler(23, "mean")
    shapes = set()
    for batch in task.loader(sampler):
        task.step(sampler, batch)
        state = sampler.state_dict()
        assert all(isinstance(value, (int, float, str, torch.Tensor)) for value in state.values())
        shapes.add(tuple((k, tuple(v.shape)) for k, v in sorted(state.items()) if isinstance(v, torch.Tensor)))
    assert len(shapes) == 1


def test_files_hold_the_same_as_dicts(tmp_path):
    task = Task()
    sampler = cdgrab.Sampler(23)
    for batch in list(task.loader(sampler))[:3]:
        task.step(sampler, batch)
    sampler.save(tmp_path / "order.safetensors")
    other = cdgrab.Sampler(23)
    other.load(tmp_path / "order.safetensors")
    assert_same_state(other.state_dict(), sampler.state_dict())
    with pytest.raises(cdgrab.FileError):
        other.load(tmp_path / "missing")


@pytest.mark.parametrize("key", ["codes", "order.current", "spec", "examples", "epoch"])
def test_foreign_states_are_refused_and_change_nothing(key):
    task = Task()
    sampler = cdgrab.Sampler(23)
    task.epoch(sampler)
    before = sampler.state_dict()
    bad = dict(before)
    del bad[key]
    with pytest.raises(cdgrab.StateMismatch, match=key):
        sampler.load_state_dict(bad)
    bad[key] = [1, 2]
    with pytest.raises(cdgrab.StateMismatch, match=key):
        sampler.load_state_dict(bad)
    with pytest.raises(cdgrab.StateMismatch):
        cdgrab.Sampler(24).load_state_dict(before)
    with pytest.raises(cdgrab.StateMismatch):
        cdgrab.Sampler(23, "mean").load_state_dict(before)
    assert_same_state(sampler.state_dict(), before)


def test_distributed_checkpoints_fill_it_in_place(tmp_path):
    task = Task()
    sampler = cdgrab.Sampler(23)
    task.epoch(sampler)
    dcp.save({"sampler": sampler.state_dict()}, checkpoint_id=tmp_path / "checkpoint")
    other, filled = cdgrab.Sampler(23, seed=9), {}
    Task().epoch(other)
    filled["sampler"] = other.state_dict()
    dcp.load(filled, checkpoint_id=tmp_path / "checkpoint")
    other.load_state_dict(filled["sampler"])
    assert other.next_order().tolist() == sampler.next_order().tolist()


def stateful(task, sampler, workers, **options):
    batches = cdgrab.BatchSampler(sampler, 4, drop_last=False)
    return StatefulDataLoader(task.dataset, batch_sampler=batches, num_workers=workers, **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stops", [[(0, 2)], [(0, 5)], [(0, 6)], [(1, 1)], [(0, 2), (0, 4)], [(0, 6), (1, 6)]])
def test_a_stateful_loader_resumes(workers, stops):
    expected, _ = uninterrupted("pair")
    task = Task()
    sampler = cdgrab.Sampler(23, seed=2)
    loader = stateful(task, sampler, workers)
    stream = [[] for _ in range(3)]
    epoch = count = 0
    for stop_epoch, stop_count in [*stops, (2, 6)]:
        while (epoch, count) != (stop_epoch, stop_count):
            if count == 6:
                epoch, count = epoch + 1, 0
            for batch in loader:
                stream[epoch] += task.step(sampler, batch)
                count += 1
                if (epoch, count) == (stop_epoch, stop_count):
                    break
        state = through_torch({"sampler": sampler.state_dict(), "loader": loader.state_dict()})
        sampler = cdgrab.Sampler(23, seed=2)
        sampler.load_state_dict(state["sampler"])
        loader = stateful(task, sampler, workers)
        loader.load_state_dict(state["loader"])
    assert stream == expected


def test_a_position_of_another_epoch_is_refused():
    sampler = cdgrab.Sampler(8)
    iterator = iter(cdgrab.BatchSampler(sampler, 4))
    with pytest.raises(cdgrab.StateMismatch, match="load the sampler's state_dict"):
        iterator.load_state_dict({"epoch": 3, "handed_out": 4})


def test_a_position_costs_the_same_for_any_number_of_examples():
    def seconds(n):
        iterator = iter(cdgrab.BatchSampler(cdgrab.Sampler(n), 64))
        next(iterator)
        times = []
        for _ in range(30):
            next(iterator)
            begin = time.perf_counter()
            state = iterator.state_dict()
            times.append(time.perf_counter() - begin)
        assert set(state) == {"epoch", "handed_out"}
        return sorted(times)[15]

    assert seconds(2_000_000) < 10 * seconds(20_000)
