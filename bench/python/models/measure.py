# SPDX-License-Identifier: Apache-2.0
"""The figures of one model: each part in a process of its own, forked from one that has only imported things."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from ..measuring import ChildFailed, cpu_seconds_of, first_sentence, in_child, peak, quietly
from . import oracle
from .case import Entry, batch_of
from .contenders import CONTENDERS, Cdgrab, Loop

EXACT_BATCH = 5
BATCH = 16
SECONDS = 3.0  # of timing, for one model
ROUNDS = (7, 151)


@dataclass
class Result:
    """Of one contender on one model: the error of its gradients, or the reason why it has none."""

    error: float | None = None
    reason: str | None = None
    ratio: float | None = None
    megabytes: float | None = None


@dataclass
class Row:
    family: str
    name: str
    says: str
    tolerance: float = 1e-5
    numbers: int = 0  # that are trained
    milliseconds: float | None = None  # of the plain step
    rules: list[str] | None = None  # of cdgrab, one per parameter
    results: dict[str, Result] = field(default_factory=dict)


def measure(entry: Entry, contenders: list[str], fast: bool) -> Row:
    row = in_child(describe, entry)
    for name in contenders:
        try:
            row.results[name], rules = in_child(exactness, entry, name)
        except ChildFailed as died:
            row.results[name], rules = Result(reason=str(died)), None
        if name == "cdgrab":
            row.rules = rules
    if not fast:
        measure_costs(entry, row)
    return row


def measure_costs(entry: Entry, row: Row) -> None:
    working = [name for name, result in row.results.items() if result.reason is None]
    row.milliseconds, ratios = in_child(times, entry, working)
    plain = in_child(peak_of, entry, "plain")
    for name in working:
        row.results[name].ratio = ratios[name]
        row.results[name].megabytes = in_child(peak_of, entry, name) - plain


def describe(entry: Entry) -> Row:
    case = entry.build()
    numbers = sum(p.numel() for p in oracle.trained(case.model).values())
    return Row(entry.family, entry.name, entry.says, case.tolerance, numbers)


def made(entry: Entry, contender: str, batch: int) -> Loop:
    return CONTENDERS[contender](entry.build(), batch)


def exactness(entry: Entry, contender: str) -> tuple[Result, list[str] | None]:
    """Of the gradients of a small batch; two training steps with a larger one have to go well too."""
    quietly()
    case = entry.build()
    x, y = batch_of(case, EXACT_BATCH)
    expected = oracle.rows(case, x, y)
    try:
        loop = made(entry, contender, EXACT_BATCH)
        found = loop.rows(x, y)
        training = made(entry, contender, BATCH)
        step = step_of(training, *batch_of(case, BATCH))
        for _ in range(2):
            step()
    except Exception as error:  # any is a result here
        return Result(reason=first_sentence(error)), None
    if isinstance(found, Tensor):
        found, expected = {"gram": found}, {"gram": oracle.gram(expected)}
    return Result(error=oracle.error(found, expected)), loop.rules if isinstance(loop, Cdgrab) else None


def times(entry: Entry, contenders: list[str]) -> tuple[float, dict[str, float]]:
    """CPU milliseconds of the plain step, and the others' as multiples of it: taken in turns, medians."""
    quietly()
    loops = {name: made(entry, name, BATCH) for name in ["plain", *contenders]}
    x, y = batch_of(loops["plain"].case, BATCH)
    steps = {name: step_of(loop, x, y) for name, loop in loops.items()}

    def turn() -> dict[str, float]:
        return {name: cpu_seconds_of(step) for name, step in steps.items()}

    turn()
    rounds = min(max(int(SECONDS / sum(turn().values())), ROUNDS[0]), ROUNDS[1])
    turns = [turn() for _ in range(rounds)]
    plain = 1e3 * statistics.median(seconds["plain"] for seconds in turns)
    return plain, {
        name: statistics.median(seconds[name] / seconds["plain"] for seconds in turns) for name in contenders
    }


def step_of(loop: Loop, x: Tensor, y: Tensor) -> Callable[[], None]:
    """With the examples handed out, which a loader would fetch."""

    def step() -> None:
        loop.hand_out()
        loop.step(x, y)

    return step


def peak_of(entry: Entry, contender: str) -> float:
    def make_step(batch: int) -> Callable[[], None]:
        loop = made(entry, contender, batch)
        return step_of(loop, *batch_of(loop.case, batch))

    return peak(make_step, BATCH)
