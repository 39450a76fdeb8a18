# SPDX-License-Identifier: Apache-2.0
"""What a rank of many hands out: passes over its workers' examples, or over everybody's."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.utils.data

from cdgrab._lengths import ANY, Batches
from cdgrab.errors import UserError, whole_number
from cdgrab.sampler import asking_for

if TYPE_CHECKING:
    from cdgrab.distributed import DistributedSampler

_CHUNK = 1 << 16


class Given(NamedTuple):
    """An example that was handed out; one that repeats another fills up a pass and is not balanced.

    Repeats in the place of a worker that a rank has not, and others have, go by the number after its own.
    """

    worker: int
    example: int
    repeats: bool


class Lane(NamedTuple):
    """What a worker hands out in a pass."""

    worker: int
    examples: torch.Tensor
    repeats: int  # of these, the last
    before: int  # the pass, in its epoch


class GlobalOrder(torch.utils.data.Sampler[int]):
    """The orders of all workers in turn, `block` examples of each: what a framework deals to the ranks.

    Dealt that way, the k-th block of every rank is its worker's; so there is one worker per rank, and every rank
    iterates over everything. Passes are whole blocks: workers repeat examples, or drop their last, as `padding` says.
    """

    def __init__(self, sampler: DistributedSampler, block: int) -> None:
        block = whole_number("block", block)
        if block < 1 or sampler.workers != sampler.num_replicas:
            raise UserError(
                f"global_order({block}) of {sampler.workers} workers on {sampler.num_replicas} ranks; a block is 1 "
                "example or more, and every rank has one worker"
            )
        sizes = [int(sampler._native.share_size(worker)) for worker in range(sampler.workers)]
        if sampler._padding == "uneven" or (
            sampler._unit > 1 and sampler._padding == "pad" and any(size % block for size in sizes)
        ):
            raise UserError(
                f"global_order({block}) with padding={sampler._padding!r} and unit={sampler._unit}; blocks are whole: "
                "'drop' is allowed, and 'pad' without a unit or with shares that are multiples of the block"
            )
        self.sampler = sampler
        self._block = block
        self._blocks = min(sizes) // block if sampler._padding == "drop" else -(-max(sizes) // block)

    def __len__(self) -> int:
        return self._blocks * self._block * self.sampler.workers

    def __iter__(self) -> Iterator[int]:
        return Pass(self.sampler, asking_for(self), self)

    def set_epoch(self, epoch: int) -> None:
        """Nothing: frameworks count passes, from 0 after every start."""

    def stream(self) -> Iterator[Given]:
        sampler, length = self.sampler, self._blocks * self._block
        lanes = []
        for worker in range(sampler.workers):
            order = sampler._native.order(worker)
            repeats = max(0, length - len(order))
            lanes.append(Lane(worker, torch.cat([order[:length], sampler._repeated([worker], 0, repeats)]), repeats, 0))
        return in_turn(lanes, self._block)


class Pass(Iterator[int]):
    """One pass; the epoch begins with its first example, so that a peek at a loader costs nothing."""

    def __init__(self, sampler: DistributedSampler, batches: Any, everything: GlobalOrder | None = None) -> None:
        if _torchdata_asks():
            raise UserError(
                "StatefulDataLoader keeps the sampler as it was when a batch was fetched, ahead of training; use "
                "torch's DataLoader, and save the sampler's state_dict() or global_state_dict() yourself"
            )
        self._sampler = sampler
        size = getattr(batches, "batch_size", None)
        size = size if isinstance(size, int) else 0
        self._batches = Batches(size, size > 0 and getattr(batches, "drop_last", None) is True)
        self._everything = everything
        self._stream: Iterator[Given] | None = None
        self._number = 0  # among the sampler's passes

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> int:
        sampler = self._sampler
        if self._stream is None:
            self._stream = self._begin()
            self._number = sampler._newest
        elif sampler._newest != self._number:
            raise UserError(
                "an iterator of a sampler that has begun another pass, or was loaded, since; use the newest"
            )
        try:
            given = next(self._stream)
        except StopIteration:
            sampler._through = True
            raise
        if self._everything is None or given.worker in sampler._hosted:
            sampler._hand_out(given)
        return given.example

    def _begin(self) -> Iterator[Given]:
        sampler = self._sampler
        if self._everything is None:
            lanes = sampler._begin(self._batches)
            return in_turn(lanes, sampler._block)
        sampler._begin(ANY)
        if any(sampler._native.position(worker)[1] for worker in sampler._hosted):
            raise UserError("a global order goes on from the first batch of an epoch; load with replay=True")
        return self._everything.stream()


def _torchdata_asks() -> bool:
    """Whether its loader stands among the callers, behind a batch sampler of any make."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("torchdata.stateful_dataloader"):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def in_turn(lanes: list[Lane], block: int) -> Iterator[Given]:
    """A block of each worker in turn, and first of those that are behind."""
    lanes = [lane for lane in lanes if len(lane.examples)]
    if len(lanes) == 1:
        block = _CHUNK
    for _, number, first in heapq.merge(*_blocks(lanes, block)):
        lane = lanes[number]
        real = len(lane.examples) - lane.repeats
        for k, example in enumerate(lane.examples[first : first + block].tolist(), start=first):
            yield Given(lane.worker, example, k >= real)


def mixes(lanes: list[Lane], block: int, batch: int) -> bool:
    """Whether a batch of the pass is of two workers: after a short one that is not the last."""
    lanes = [lane for lane in lanes if len(lane.examples)]
    last = sorted(blocks[-1] for blocks in _blocks(lanes, block))
    return any(len(lanes[number].examples) % batch for _, number, _ in last[:-1])


def _blocks(lanes: list[Lane], block: int) -> list[list[tuple[int, int, int]]]:
    """Of each lane: the turn of a block, the lane's number, the block's first example."""
    behind = min((lane.before for lane in lanes), default=0)
    return [
        [
            (-(-(lane.before - behind) // block) + turn, number, first)
            for turn, first in enumerate(range(0, len(lane.examples), block))
        ]
        for number, lane in enumerate(lanes)
    ]
