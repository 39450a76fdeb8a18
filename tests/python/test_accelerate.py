# SPDX-License-Identifier: Apache-2.0
"""cdgrab.accelerate against the real package, on one process and on two."""

import os

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from training import Task, flat

import cdgrab

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

import cdgrab.accelerate

ORDERS = ["pair", "mean", "recursive-pair; depth=1", "rr"]


class Run:
    """A training of Task under Accelerate that remembers what it saw."""

    def __init__(self, n, order="pair", batch_size=4, seed=2, sampler=None, drop_last=False, workers=0, **config):
        self.task = Task(n)
        self.accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config))
        self.sampler = sampler or cdgrab.accelerate.Sampler(n, order, seed=seed)
        loader = self.task.loader(self.sampler, batch_size, drop_last=drop_last, num_workers=workers)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(self.task.model, self.task.optimizer, loader)
        self.sampler.attach(self.accelerator, self.loader)

    def step(self, batch):
        indices, x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.sampler.observe(loss, len(x))
        self.optimizer.zero_grad()
        self.accelerator.backward(loss)
        self.optimizer.step()
        return indices.tolist()

    def epoch(self, loader=None):
        return flat([self.step(batch) for batch in loader or self.loader])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_one_process_trains_as_without_accelerate(order, workers):
    run = Run(23, order, workers=workers)
    task, sampler = Task(), cdgrab.Sampler(23, order, seed=2)
    for _ in range(3):
        assert run.epoch() == flat(task.epoch(sampler))
    assert all(torch.equal(a, b) for a, b in zip(run.task.model.parameters(), task.model.parameters(), strict=True))


@pytest.mark.parametrize("order", ["pair", "mean", "rr"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("stop", [(0, 1), (1, 3), (1, 5), (1, 6)])
def test_save_state_and_skip_first_batches_give_the_uninterrupted_stream(tmp_path, order, drop_last, stop):
    expected = Run(23, order, drop_last=drop_last)
    stream = [expected.epoch() for _ in range(4)]
    if stop[1] > len(expected.loader):
        pytest.skip("dropped")
    run = Run(23, order, drop_last=drop_last)
    seen = [run.epoch() for _ in range(stop[0])]
    seen.append([])
    for count, batch in enumerate(run.loader, start=1):
        seen[-1] += run.step(batch)
        if count == stop[1]:
            run.accelerator.save_state(tmp_path)
            break

    run = Run(23, order, drop_last=drop_last, seed=99)
    run.accelerator.load_state(tmp_path)
    if stop[1] < len(run.loader):
        seen[-1] += run.epoch(run.accelerator.skip_first_batches(run.loader, stop[1]))
    seen += [run.epoch() for _ in range(4 - len(seen))]
    assert seen == stream


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [(0, 1), (1, 3), (1, 6)])
def test_a_stateful_loader_skips_by_itself(tmp_path, workers, stop):
    def start(seed=2):
        return Run(23, "pair", workers=workers, seed=seed, use_stateful_dataloader=True)

    expected = Run(23, "pair")
    stream = [expected.epoch() for _ in range(4)]
    run = start()
    seen = [run.epoch() for _ in range(stop[0])]
    seen.append([])
    for count, batch in enumerate(run.loader, start=1):
        seen[-1] += run.step(batch)
        if count == stop[1]:
            run.accelerator.save_state(tmp_path)
            break

    run = start(seed=99)
    run.accelerator.load_state(tmp_path)
    if stop[1] < len(run.loader):
        seen[-1] += run.epoch()
    seen += [run.epoch() for _ in range(4 - len(seen))]
    assert seen == stream


def test_a_loader_of_another_sampler_is_refused():
    run = Run(8)
    with pytest.raises(cdgrab.UserError, match="another sampler"):
        cdgrab.accelerate.Sampler(8).attach(run.accelerator, run.loader)


def test_observe_needs_attach():
    sampler = cdgrab.accelerate.Sampler(8)
    with pytest.raises(cdgrab.UserError, match="attach"):
        sampler.observe(torch.zeros(()), 4)


# -- two processes ---------------------------------------------------------------------------------------------------


def shared(run, epochs=3):
    """Per epoch and process: what it trained on, and its order."""
    history = []
    for _ in range(epochs):
        mine = [run.epoch(), run.sampler.current_order().tolist()]
        together = [None, None]
        torch.distributed.all_gather_object(together, mine)
        history.append(together)
    return history


def every_example_once_and_one_order(order, config, _):
    run = Run(24, order, batch_size=8 if config.get("split_batches") else 4, **config)
    history = shared(run)
    for (first, order_0), (second, order_1) in history:
        assert sorted(first + second) == list(range(24))
        assert order_0 == order_1
        batches = [order_0[k : k + 4] for k in range(0, 24, 4)]
        assert first == flat(batches[0::2])
        assert second == flat(batches[1::2])
    assert history[0][0][1] != history[1][0][1] != history[2][0][1]
    next(iter(run.loader))
    report = run.sampler.last_report()
    assert (report["observed"], report["unobserved"], report["unpaired"]) == (24, 0, 0)


def the_order_is_the_fold_of_both_shares(*_):
    """With weights that stay, each process's signs are those of a sampler that sees its share alone."""
    run = Run(24)
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    (first, order), (second, _) = shared(run, 1)[0]
    plus, minus = [], []
    for share in (first, second):
        task, alone = Task(24, lr=0.0), cdgrab.Sampler(24, initial_order=share + sorted(set(range(24)) - set(share)))
        loader = iter(task.loader(alone))
        for _ in range(3):
            task.step(alone, next(loader))
        folded = alone.next_order().tolist()
        plus += folded[:6]
        minus += folded[-6:]
    place = {example: position for position, example in enumerate(order)}
    expected = sorted(plus, key=place.get) + sorted(minus, key=place.get, reverse=True)
    assert shared(run, 1)[0][0][1] == expected


def repeats_are_not_balanced(*_):
    """22 examples: the last batch of process 1 is of two examples, filled up with two of the head."""
    run = Run(22)
    history = shared(run)
    for (first, order_0), (second, order_1) in history:
        assert len(first) == len(second) == 12
        assert set(first + second) == set(range(22))
        assert order_0 == order_1
    next(iter(run.loader))
    assert run.sampler.last_report()["unobserved"] == 2


def the_tail_may_be_dropped(*_):
    run = Run(22, drop_last=True)
    for (first, order_0), (second, order_1) in shared(run):
        assert len(set(first + second)) == 16
        assert order_0 == order_1


def resume_equals_never_stopping(order, config, path):
    expected = shared(Run(24, order), 4)
    for stop in (1, 2, 3):
        run = Run(24, order)
        start = shared(run, 1)
        seen = []
        for count, batch in enumerate(run.loader, start=1):
            seen += run.step(batch)
            if count == stop:
                run.accelerator.save_state(f"{path}/{stop}")
                break
        run = Run(24, order, seed=99)
        run.accelerator.load_state(f"{path}/{stop}")
        if stop < 3:
            seen += run.epoch(run.accelerator.skip_first_batches(run.loader, stop))
        together = [None, None]
        torch.distributed.all_gather_object(together, seen)
        assert start == expected[:1]
        assert together == [part[0] for part in expected[1]]
        assert shared(run, 2) == expected[2:]


def different_orders_are_noticed(*_):
    run = Run(24, seed=torch.distributed.get_rank())
    with pytest.raises(cdgrab.CommunicationError, match="different orders"):
        run.epoch()


def what_needs_every_vector_is_refused(*_):
    with pytest.raises(cdgrab.UserError, match="in one process"):
        Run(24, "greedy")
    with pytest.raises(cdgrab.UserError, match="dispatch_batches"):
        Run(24, dispatch_batches=True)


def process(rank, path, checks):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{path}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for number, (check, order, config) in enumerate(checks):
        check(order, config, f"{path}/{number}")
    torch.distributed.destroy_process_group()


def test_two_processes_share_one_order(tmp_path):
    checks = [(every_example_once_and_one_order, order, {}) for order in ORDERS]
    checks += [(every_example_once_and_one_order, "pair", {"split_batches": True})]
    checks += [(resume_equals_never_stopping, order, {}) for order in ("pair", "mean")]
    rest = (the_order_is_the_fold_of_both_shares, repeats_are_not_balanced, the_tail_may_be_dropped)
    checks += [
        (check, "pair", {}) for check in (*rest, different_orders_are_noticed, what_needs_every_vector_is_refused)
    ]
    torch.multiprocessing.spawn(process, (str(tmp_path), checks), nprocs=2)
