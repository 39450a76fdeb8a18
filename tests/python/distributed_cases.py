# SPDX-License-Identifier: Apache-2.0
"""What holds on real ranks: run by torchrun, from test_distributed.py. Each case is a sentence."""

from __future__ import annotations

import copy
import faulthandler
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from order_server import integer_gradient, next_orders
from ranks import run_cases
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler
from training import Task, flat, through_torch

import cdgrab

CASES: dict[str, Callable[[], None]] = {}
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
AT_LENGTH = "CDGRAB_TORTURE" in os.environ


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def gathered(mine: object) -> list:
    all_of_them: list = [None] * dist.get_world_size()
    dist.all_gather_object(all_of_them, mine)
    return all_of_them


def same_everywhere(mine: object) -> bool:
    return all(other == mine for other in gathered(mine))


def orders_of(sampler: cdgrab.DistributedSampler) -> list[list[int]]:
    return [sampler.current_order(worker).tolist() for worker in range(sampler.workers)]


def feed(sampler: cdgrab.DistributedSampler, batch: list[int]) -> None:
    sampler.step(torch.stack([integer_gradient(e, sampler.epoch) for e in batch]), indices=batch)


class Training:
    """Task under DDP; remembers what this rank saw."""

    def __init__(self, sampler: cdgrab.DistributedSampler, n: int, **ddp: object) -> None:
        self.task = Task(n)
        self.model = DDP(self.task.model, **ddp)
        self.sampler = sampler

    def step(self, batch: tuple, observe: bool = True) -> list[int]:
        indices, x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        if observe:
            self.sampler.observe(loss, len(x))
        self.task.optimizer.zero_grad()
        loss.backward()
        self.task.optimizer.step()
        return indices.tolist()

    def gradient(self, example: int) -> torch.Tensor:
        loss = F.cross_entropy(self.task.model(self.task.x[[example]]), self.task.y[[example]])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.task.model.parameters())])

    def weights(self) -> list[float]:
        return torch.cat([p.detach().flatten() for p in self.task.model.parameters()]).tolist()


@case
def every_communicator_passes_the_suite() -> None:
    torch.ops.load_library(os.environ["CDGRAB_C10D_SUITE"])
    suite = torch.ops.cdgrab_suite
    suite.run(dist.group.WORLD.group_name, [])
    suite.run(dist.group.WORLD.group_name, [dist.new_group().group_name for _ in range(11)])
    for all_to_all in (False, True):
        group = dist.new_group()
        with pytest.raises(RuntimeError, match="bytes where 8"):
            suite.sum(group.group_name, all_to_all, 11 if dist.get_rank() == 1 else 10, 2000)


@case
def orders_are_those_of_the_order_server() -> None:
    for workers in (1, 2, 3, 4, 7, 64):
        n = 4 * workers + 9
        for order, padding, overlap in (
            ("cd-pair", "uneven", False),
            ("cd-pair", "pad", True),
            ("id-pair", "drop" if workers % dist.get_world_size() == 0 else "uneven", False),
        ):
            sampler = cdgrab.DistributedSampler(
                n, order=order, workers=workers, padding=padding, overlap=overlap, seed=workers
            )
            for _ in range(2):
                mine: list[list[int]] = [[] for _ in range(workers)]
                orders = orders_of(sampler)
                assert sorted(e for order in orders for e in order) == list(range(n))
                for batch in BatchSampler(sampler, 5, drop_last=False):
                    feed(sampler, batch)
                    for e in batch:
                        if e not in mine[e % workers]:
                            mine[e % workers].append(e)
                epoch = sampler.epoch
                sampler.end_epoch()
                seen = [max(of_worker, key=len) for of_worker in zip(*gathered(mine), strict=True)]
                vectors = [[(e, integer_gradient(e, epoch)) for e in of_worker] for of_worker in seen]
                expected = next_orders(orders, vectors, order == "cd-pair")
                assert orders_of(sampler) == expected, (workers, order, padding)
                assert same_everywhere(sampler.order_hash())


@case
def ddp_training_orders_by_the_examples_own_gradients() -> None:
    """A real loader with workers; the share of rank 0 is larger, so that the others repeat an example."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    n = 7 * ranks + 1
    sampler = cdgrab.DistributedSampler(range(n), seed=3)
    training = Training(sampler, n)
    for _ in range(2):
        orders = orders_of(sampler)
        seen: list[tuple[int, torch.Tensor]] = []
        visited = []
        for batch in training.task.loader(sampler, 3, num_workers=1):
            for e in batch[0].tolist():
                if e not in [known for known, _ in seen]:
                    seen.append((e, training.gradient(e)))
            visited += training.step(batch)
        assert len(visited) == len(sampler) == 8
        assert sampler._native.steps() == 3  # one at the end of each backward
        assert set(flat(gathered(visited))) == set(range(n))
        assert sampler.report()["observed"] == len(set(visited)) == (8 if rank == 0 else 7)
        expected = next_orders(orders, gathered(seen))
        sampler.end_epoch()
        assert orders_of(sampler) == expected
        assert same_everywhere((sampler.order_hash(), training.weights()))


@case
def the_hook_averages_as_ddp_does_and_orders_as_observe_microbatch_does() -> None:
    ranks = dist.get_world_size()
    for n in (12 * ranks, 12 * ranks + 1):  # with one more, rank 0 has a unit more than the others
        order = "cd-pair; unit=4"
        hooked = Training(cdgrab.DistributedSampler(n, order=order, seed=5), n, bucket_cap_mb=0.0003)
        plain = Training(cdgrab.DistributedSampler(n, order=order, seed=5), n)
        ddp = Training(hooked.sampler, n)  # averages by itself
        hooked.sampler.register_comm_hook(hooked.model)
        for _ in range(3):
            pairs = zip(hooked.task.loader(hooked.sampler), plain.task.loader(plain.sampler), strict=True)
            for number, (ours, theirs) in enumerate(pairs):
                assert ours[0].tolist() == theirs[0].tolist()
                hooked.step(ours, observe=False)
                ddp.step(ours, observe=False)
                only_repeats = number == 3 and dist.get_rank() > 0
                # This rank's own gradient; repeats have no part in the hook's mean.
                with plain.model.no_sync():
                    plain.task.optimizer.zero_grad()
                    F.cross_entropy(plain.model(theirs[1]), theirs[2]).backward()
                plain.sampler.observe_microbatch(plain.task.model.parameters())
                for p in plain.task.model.parameters():
                    p.grad.mul_(0.0 if only_repeats else 1.0)
                    dist.all_reduce(p.grad)
                    p.grad.div_(1 if number == 3 else ranks)
                plain.task.optimizer.step()
                assert torch.allclose(torch.tensor(hooked.weights()), torch.tensor(plain.weights()), rtol=0, atol=1e-12)
        for training in (hooked, plain):
            training.sampler.end_epoch()
        assert orders_of(hooked.sampler) == orders_of(plain.sampler)
        assert same_everywhere((hooked.sampler.order_hash(), hooked.weights()))
        assert hooked.sampler.last_report()["unobserved"] == 0


@case
def workers_pad_drop_or_stay_uneven_as_told() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    n = 5 * ranks + 1
    for padding, lengths in (("pad", [6] * ranks), ("drop", [5] * ranks), ("uneven", [6] + [5] * (ranks - 1))):
        sampler = cdgrab.DistributedSampler(n, padding=padding, workers=ranks)
        assert len(sampler) == lengths[rank]
        for _ in range(2):
            visited = []
            for batch in BatchSampler(sampler, 2, drop_last=False):
                feed(sampler, batch)
                visited += batch
            sampler.end_epoch()
            assert [len(v) for v in gathered(visited)] == lengths
            own = range(rank, n, ranks)
            assert set(visited) <= set(own)
            assert len(set(visited)) == (5 if padding == "drop" else len(own))
        assert [sampler.last_report(w)["observed"] for w in range(ranks)] == [5 if padding == "drop" else 6] + [5] * (
            ranks - 1
        )


@case
def ranks_with_fewer_workers_repeat_whole_batches() -> None:
    ranks = dist.get_world_size()
    for workers in (ranks + 1, ranks - 1):
        n = 8 * workers + 1
        sampler = cdgrab.DistributedSampler(n, workers=workers, timeout=20)
        training = Training(sampler, n)
        lanes = 2 if workers > ranks else 1
        for _ in range(2):
            batches = [training.step(batch) for batch in training.task.loader(sampler, 3)]
            assert len(flat(batches)) == len(sampler) == lanes * 9
            assert sampler.total_size == ranks * len(sampler)
            assert set(flat(flat(gathered(batches)))) == set(range(n))
            if sampler.hosted_workers:  # it repeats what it has
                assert {e % workers for e in flat(batches)} == set(sampler.hosted_workers)
            sampler.end_epoch()
            assert [sampler.last_report(w)["observed"] for w in range(workers)] == [9] + [8] * (workers - 1)
        assert same_everywhere((sampler.order_hash(), training.weights()))
    with pytest.raises(cdgrab.UserError, match="'pad', or 'uneven' and Join, or as many workers as"):
        cdgrab.DistributedSampler(n, workers=ranks + 1, padding="drop")


@case
def uneven_ranks_train_together_inside_join() -> None:
    """Rank 0 has a batch more than the others."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    n = 6 * ranks + 1
    sampler = cdgrab.DistributedSampler(n, padding="uneven")
    training = Training(sampler, n)
    for _ in range(2):
        orders = orders_of(sampler)
        with Join([training.model, sampler]):
            visited = flat([training.step(batch) for batch in training.task.loader(sampler, 3)])
        assert visited == orders[rank]
        assert len(visited) == (7 if rank == 0 else 6)
        sampler.end_epoch()
    assert same_everywhere(sampler.order_hash())
    assert [sampler.last_report(w)["unobserved"] for w in range(ranks)] == [0] * ranks


@case
def the_hook_takes_units_and_says_so() -> None:
    n = 16 * dist.get_world_size()

    def hooked() -> Training:
        training = Training(cdgrab.DistributedSampler(n, order="cd-pair; unit=4", timeout=20), n)
        training.sampler.register_comm_hook(training.model)
        return training

    with pytest.raises(cdgrab.UserError, match="batch 8, unit=4: they have to be equal"):
        next(iter(BatchSampler(hooked().sampler, 8, drop_last=False)))
    training = hooked()
    with pytest.raises(cdgrab.UserError, match=r"batch 2, unit=4: they have to be equal.* no_sync"):
        training.step(next(iter(training.task.loader(training.sampler, 2))), observe=False)
    training = hooked()
    for number, batch in enumerate(training.task.loader(training.sampler, 2, num_workers=1)):
        if number % 2:
            training.step(batch, observe=False)
        else:
            with training.model.no_sync():
                F.cross_entropy(training.model(batch[1]), batch[2]).backward()
    training.sampler.end_epoch()
    assert training.sampler.last_report()["observed"] == 4
    with pytest.raises(cdgrab.UserError, match="unit= and the number of examples"):
        cdgrab.DistributedSampler(n, order="d-rr").register_comm_hook(training.model)


@case
def the_hook_averages_inside_join() -> None:
    """Rank 0 has a unit more than the others; its last mean is its own gradient."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    n = 8 * ranks + 1
    sampler = cdgrab.DistributedSampler(n, order="cd-pair; unit=4", padding="uneven", timeout=20)
    training = Training(sampler, n)
    sampler.register_comm_hook(training.model)
    for _ in range(2):
        with Join([training.model, sampler]):
            batches = [training.step(batch, observe=False) for batch in training.task.loader(sampler)]
        assert len(batches) == (3 if rank == 0 else 2)
        sampler.end_epoch()
        assert [sampler.last_report(w)["observed"] for w in range(ranks)] == [3] + [2] * (ranks - 1)
    assert same_everywhere((sampler.order_hash(), training.weights()))


@case
def resuming_equals_never_stopping() -> None:
    """From every step of two epochs: examples, weights and, bit for bit, the state at the end."""
    n = 9 * dist.get_world_size() + 1
    steps = 4  # of an epoch, the last of one example
    resumes = 0

    def start(order: str) -> tuple[cdgrab.DistributedSampler, Training]:
        sampler = cdgrab.DistributedSampler(n, order=order, seed=1)
        # Else DDP deals its buckets anew after its first step, and adds in another order.
        return sampler, Training(sampler, n, find_unused_parameters=True)

    def run(sampler: cdgrab.DistributedSampler, training: Training, count: int, ahead: bool = False) -> list:
        seen: list = []
        while len(seen) < count:
            for batch in training.task.loader(sampler, 3, num_workers=int(ahead)):
                seen.append(training.step(batch))
                if len(seen) == count:
                    break
        return seen

    def saved(sampler: cdgrab.DistributedSampler, how: str) -> Callable[[cdgrab.DistributedSampler], object]:
        if how == "file":
            sampler.save(FOLDER / "order.cdgrab")
            dist.barrier()
            return lambda other: other.load(FOLDER / "order.cdgrab")
        state = through_torch(sampler.state_dict() if how == "local" else sampler.global_state_dict())
        return lambda other: other.load_state_dict(state)

    def end(sampler: cdgrab.DistributedSampler, training: Training) -> list:
        state = sampler.global_state_dict()
        state.pop("step")  # to save is a round, and counts as one
        return [training.weights(), *(v.tolist() if isinstance(v, torch.Tensor) else v for v in state.values())]

    orders = ["cd-pair", "cd-pair; sign=halving", "id-pair; sign=walk,c=3", "d-rr"] if AT_LENGTH else ["cd-pair"]
    for order in orders:
        sampler, training = start(order)
        expected = run(sampler, training, 3 * steps)
        last = end(sampler, training)
        for stop in range(2 * steps + 1):
            ways = ("local", "global", "file")
            for how in ways if AT_LENGTH else ways[stop % 3 :][:1]:
                sampler, training = start(order)
                seen = run(sampler, training, stop, ahead=stop % 3 == 1)
                load = saved(sampler, how)
                again, other = start(order)
                other.task.load_state_dict(training.task.state_dict())
                load(again)
                seen += run(again, other, 3 * steps - stop)
                assert seen == expected, (order, stop, how)
                assert end(again, other) == last, (order, stop, how)
                resumes += 1
                dist.barrier()  # before the file is written again
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: {resumes} resumes")


@case
def orders_without_rounds_go_on_from_a_ranks_own_state() -> None:
    """d-rr, whose ranks hear nothing of each other; rank 0 has an example more, in a batch of its own."""
    n = 8 * dist.get_world_size() + 1

    def train(sampler: cdgrab.DistributedSampler, batches: list, steps: int, observe: bool) -> None:
        while steps:
            for batch in BatchSampler(sampler, 4, drop_last=False):
                if observe:
                    loss = torch.zeros(len(batch), requires_grad=True)
                    sampler.observe(loss, len(batch))
                    loss.sum().backward()
                if observe and padding == "drop":
                    sampler.step()  # of use to nobody, and allowed
                batches.append(batch)
                steps -= 1
                if steps == 0:
                    break

    for observe, padding in ((True, "pad"), (False, "pad"), (True, "drop")):
        options = {"order": "d-rr", "padding": padding, "timeout": 20.0}
        expected: list = []
        train(cdgrab.DistributedSampler(n, **options), expected, 9, observe)
        for stop in range(1, 7):
            sampler, seen = cdgrab.DistributedSampler(n, **options), []
            train(sampler, seen, stop, observe)
            for _ in range(2):  # and once more before anything else is handed out
                state = sampler.state_dict()
                sampler = cdgrab.DistributedSampler(n, **options)
                sampler.load_state_dict(state)
            train(sampler, seen, 9 - stop, observe)
            assert seen == expected, (observe, padding, stop)
        dist.barrier()


@case
def several_workers_of_a_rank_go_on_in_their_turn() -> None:
    ranks = dist.get_world_size()
    for workers, padding in ((2 * ranks, "pad"), (2 * ranks, "drop"), (ranks + 1, "pad")):
        n = 4 * workers + 1
        options = {"workers": workers, "padding": padding, "timeout": 20.0}

        def train(sampler: cdgrab.DistributedSampler, batches: list, steps: int) -> None:
            for batch in BatchSampler(sampler, 2, drop_last=False):
                feed(sampler, batch)
                batches.append(batch)
                if len(batches) == steps:
                    return

        expected: list = []
        train(cdgrab.DistributedSampler(n, **options), expected, -1)
        for stop in range(1, 4):
            sampler, seen = cdgrab.DistributedSampler(n, **options), []
            train(sampler, seen, stop)
            again = cdgrab.DistributedSampler(n, **options)
            again.load_state_dict(sampler.state_dict() if stop % 2 else sampler.global_state_dict())
            train(again, seen, -1)
            assert seen == expected, (workers, padding, stop)


@case
def another_number_of_workers_visits_what_is_left_once() -> None:
    ranks = dist.get_world_size()
    n = 41
    for order, padding, observe in (
        ("cd-pair", "uneven", True),
        ("cd-pair", "pad", True),
        ("cd-pair", "drop", True),
        ("d-rr", "pad", False),
    ):
        sampler = cdgrab.DistributedSampler(n, order=order, workers=5, padding="uneven")
        seen = []
        for batch in islice(BatchSampler(sampler, 2, drop_last=False), 4):
            if observe:
                feed(sampler, batch)
            seen += batch
        state = sampler.global_state_dict()
        for workers in (ranks, 2 * ranks, 1 if padding != "drop" else ranks):
            resumed = cdgrab.DistributedSampler(n, order=order, workers=workers, padding=padding, timeout=20)
            resumed.load_state_dict(state)
            batches = list(BatchSampler(resumed, 2, drop_last=False))
            for batch in batches if observe else []:
                feed(resumed, batch)
            resumed.end_epoch()
            visited = flat(gathered(seen)) + flat(flat(gathered(batches)))
            assert set(visited) == set(range(n)), (order, padding, workers)
            if padding == "uneven":
                assert len(visited) == n
            else:  # repeats even out the ranks
                assert same_everywhere(len(batches))
            assert same_everywhere(resumed.order_hash())
            assert sorted(e for order in orders_of(resumed) for e in order) == list(range(n))


@case
def a_state_of_other_ranks_goes_on_bit_for_bit() -> None:
    """Two ranks write the state, in the middle of an epoch, and what came of it; three go on with as many workers."""
    ranks = dist.get_world_size()

    def rest_of(sampler: cdgrab.DistributedSampler) -> list[list[list[int]]]:
        orders = []
        for _ in range(2):
            for batch in BatchSampler(sampler, 3, drop_last=False):
                feed(sampler, batch)
            sampler.end_epoch()
            orders.append(orders_of(sampler))
        return orders

    sampler = cdgrab.DistributedSampler(23, workers=2, padding="uneven", seed=9)
    path, outcome = FOLDER / "two.cdgrab", FOLDER / "two.json"
    if ranks == 2:
        for number, batch in enumerate(BatchSampler(sampler, 3, drop_last=False)):
            if number == 2:
                break
            feed(sampler, batch)
        sampler.save(path)
        again = cdgrab.DistributedSampler(23, workers=2, padding="uneven", seed=9)
        dist.barrier()
        again.load(path)
        orders = rest_of(again)
        if dist.get_rank() == 0:
            outcome.write_text(json.dumps(orders))
    else:
        sampler.load(path)
        assert rest_of(sampler) == json.loads(outcome.read_text())


@case
def a_peek_on_one_rank_is_nobodys_business() -> None:
    """Its loader fetches the whole share ahead."""
    n = 8 * dist.get_world_size()
    sampler = cdgrab.DistributedSampler(n, timeout=20)
    training = Training(sampler, n)
    loader = training.task.loader(sampler, 4, num_workers=1)
    if dist.get_rank() == 0:
        next(iter(loader))
    assert len([training.step(batch) for batch in loader]) == 2
    assert sampler.epoch == 0
    sampler.end_epoch()
    assert sampler.last_report()["unobserved"] == 0


@case
def a_framework_that_deals_batches_gives_each_rank_its_workers() -> None:
    if importlib.util.find_spec("accelerate") is None:
        return
    from accelerate.data_loader import BatchSamplerShard

    ranks, rank = dist.get_world_size(), dist.get_rank()
    for padding in ("pad", "drop"):
        n = 11 * ranks + 1
        sampler = cdgrab.DistributedSampler(n, padding=padding, seed=4)
        whole = sampler.global_order(3)
        shard = BatchSamplerShard(BatchSampler(whole, 3, drop_last=False), ranks, rank)
        for epoch in range(3):
            orders = orders_of(sampler)
            batches = []
            passing = iter(shard)
            for number, batch in enumerate(passing):
                feed(sampler, batch)
                batches.append(batch)
                if (padding, epoch, number) == ("pad", 1, 1):  # a new process: those trained on are skipped
                    state = sampler.state_dict()
                    sampler = cdgrab.DistributedSampler(n, padding=padding, seed=4)
                    sampler.load_state_dict(state, replay=True)
                    whole = sampler.global_order(3)
                    shard = BatchSamplerShard(BatchSampler(whole, 3, drop_last=False), ranks, rank)
                    passing = iter(shard)
                    skipped = [next(passing), next(passing)]
                    assert skipped == batches
                    for more in passing:
                        feed(sampler, more)
                        batches.append(more)
                    break
            blocks = 4 if padding == "pad" else 3
            mine = orders[rank][: 3 * blocks]
            assert flat(batches)[: len(mine)] == mine
            assert len(flat(batches)) == 3 * blocks == len(whole) // ranks
            seen = [[(e, integer_gradient(e, epoch)) for e in order[: 3 * blocks]] for order in orders]
            sampler.end_epoch()
            assert orders_of(sampler) == next_orders(orders, seen), (padding, epoch)


@case
def accelerate_trains_with_a_global_order() -> None:
    if importlib.util.find_spec("accelerate") is None:
        return
    from accelerate import Accelerator

    n = 8 * dist.get_world_size() + 3
    accelerator = Accelerator(cpu=True)
    task = Task(n)
    sampler = cdgrab.DistributedSampler(n, seed=6)
    model, optimizer, loader = accelerator.prepare(task.model, task.optimizer, task.loader(sampler.global_order(4), 4))
    for _ in range(2):
        orders = orders_of(sampler)
        visited = []
        for indices, x, y in loader:
            loss = F.cross_entropy(model(x), y)
            sampler.observe(loss, len(x))
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            visited += indices.tolist()
        assert visited[: len(orders[sampler.rank])] == orders[sampler.rank]
        sampler.end_epoch()
    assert same_everywhere(sampler.order_hash())
    assert sampler.last_report()["unobserved"] == 0


@case
def sharded_models_are_observed_as_whole_ones() -> None:
    """FSDP2: the gradients of single examples, and the orders, are those of the model on one rank."""
    torch.manual_seed(3)
    whole = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    model = copy.deepcopy(whole)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    x, y = torch.randn(24, 4), torch.randint(3, (24,))
    rows = []
    for each in (model, whole):
        sampler = cdgrab.DistributedSampler(24, seed=5)
        for batch in torch.utils.data.BatchSampler(sampler, 4, drop_last=False):
            geometry = cdgrab.GradientGeometry()
            loss = F.cross_entropy(each(x[batch]), y[batch])
            geometry.observe(loss, len(batch))
            sampler.observe(loss, len(batch))
            loss.backward()
            rows.append(geometry.rows())
        sampler.end_epoch()
        rows.append(torch.tensor([sampler.order_hash()]))
    for sharded, plain in zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True):
        torch.testing.assert_close(sharded, plain)


@case
def fused_orders_leave_large_layers_their_gradients() -> None:
    """Who looks at gradients inside the backward, as DDP and FSDP2 do, finds them there."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x, y = torch.randn(6, 8), torch.randint(3, (6,))

    def gradients(order: str, sharded: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        layers = [torch.nn.Linear(8, 640), torch.nn.Tanh(), torch.nn.Linear(640, 512), torch.nn.Linear(512, 3)]
        model: torch.nn.Module = torch.nn.Sequential(*layers)
        if sharded:
            for part in (*layers, model):
                fully_shard(part, mesh=mesh)
        else:
            model = DDP(model)
        sampler = cdgrab.Sampler(6, order)
        assert len(list(sampler)) == 6
        loss = F.cross_entropy(model(x), y)
        sampler.observe(loss, 6)
        loss.backward()
        assert sampler.report()["observed"] == 6
        return [p.grad.full_tensor() if sharded else p.grad for p in model.parameters()]

    for sharded in (False, True):
        torch.testing.assert_close(gradients("pair; fused", sharded), gradients("rr", sharded))


@case
def a_state_dict_waits_for_nobody() -> None:
    sampler = cdgrab.DistributedSampler(20)
    feed(sampler, next(iter(BatchSampler(sampler, 2, drop_last=False))))
    if dist.get_rank() == 0:
        before = time.monotonic()
        sampler.state_dict()
        assert time.monotonic() - before < 1.0
        dist.barrier()
    else:
        dist.barrier()  # rank 0 is through
        sampler.state_dict()


@case
def a_group_of_others_is_refused() -> None:
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        assert cdgrab.DistributedSampler(20, group=group).num_replicas == 1
    else:
        with pytest.raises(cdgrab.UserError, match="a group that this rank is not in"):
            cdgrab.DistributedSampler(20, group=group)


@case
def ranks_that_disagree_are_told() -> None:
    group = dist.new_group()
    sampler = cdgrab.DistributedSampler(20, group=group, seed=dist.get_rank(), timeout=5)
    batch = next(iter(BatchSampler(sampler, 2, drop_last=False)))
    with pytest.raises(cdgrab.CommunicationError, match="rank"):
        feed(sampler, batch)


@case
def a_rank_that_hangs_is_named_within_the_timeout() -> None:
    group = dist.new_group()
    sampler = cdgrab.DistributedSampler(20, group=group, timeout=1.0)
    batches = iter(BatchSampler(sampler, 2, drop_last=False))
    feed(sampler, next(batches))
    if dist.get_rank() == 1:
        time.sleep(2)
    else:
        before = time.monotonic()
        with pytest.raises(cdgrab.CommunicationError, match=r"step.*rank 1"):
            feed(sampler, next(batches))
        assert time.monotonic() - before < 2.5
    dist.barrier()


@case
def a_killed_rank_makes_the_others_stop() -> None:
    """Inside backward(). The last: there is no group after it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun would end the others before they could tell
    sampler = cdgrab.DistributedSampler(20, timeout=60)
    task = Task(20)
    loader = iter(task.loader(sampler, 2))
    for _ in range(2):
        task.step(sampler, next(loader))
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    before = time.monotonic()
    with pytest.raises(cdgrab.CommunicationError, match="rank 1"):
        task.step(sampler, next(loader))
    assert time.monotonic() - before < 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(float(os.environ.get("CDGRAB_RANKS_TIMEOUT", "170")), exit=True)
    dist.init_process_group("gloo")
    chosen = {name: CASES[name] for name in sys.argv[2:]} or CASES
    run_cases(chosen, dist.get_rank(), dist.get_world_size(), FOLDER)
    os._exit(0)
