# SPDX-License-Identifier: Apache-2.0
"""The figures of one model: each part in a process of its own, forked from one that has only imported things."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import re
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from . import oracle
from .case import Case
from .catalogue import Entry
from .contenders import CONTENDERS, Cdgrab, Loop

P = ParamSpec("P")
T = TypeVar("T")

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


def in_child(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *args, **options).result()


def measure(entry: Entry, contenders: list[str], fast: bool) -> Row:
    row = in_child(describe, entry)
    for name in contenders:
        try:
            row.results[name], rules = in_child(exactness, entry, name)
        except BrokenProcessPool:
            row.results[name], rules = Result(reason="the process was killed"), None
        if name == "cdgrab":
            row.rules = rules
    if not fast:
        measure_costs(entry, row)
    return row


def measure_costs(entry: Entry, row: Row) -> None:
    working = [name for name, result in row.results.items() if result.reason is None]
    row.milliseconds, ratios = in_child(times, entry, working)
    plain = in_child(peak, entry, "plain")
    for name in working:
        row.results[name].ratio = ratios[name]
        row.results[name].megabytes = in_child(peak, entry, name) - plain


def describe(entry: Entry) -> Row:
    case = entry.build()
    numbers = sum(p.numel() for p in oracle.trained(case.model).values())
    return Row(entry.family, entry.name, entry.says, case.tolerance, numbers)


def quietly() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def batch_of(case: Case, size: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return case.examples(size)


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
        for _ in range(2):
            training.step(*batch_of(case, BATCH))
    except Exception as error:  # any is a result here
        return Result(reason=first_sentence(error)), None
    if isinstance(found, Tensor):
        found, expected = {"gram": found}, {"gram": oracle.gram(expected)}
    return Result(error=oracle.error(found, expected)), loop.rules if isinstance(loop, Cdgrab) else None


def first_sentence(error: Exception) -> str:
    text = re.split(r"(?<=[.;])(?<!e\.g\.)\s|\n", str(error).strip())[0]
    return f"{type(error).__name__}: {text.rstrip('.;')}"


def times(entry: Entry, contenders: list[str]) -> tuple[float, dict[str, float]]:
    """CPU milliseconds of the plain step, and the others' as multiples of it: taken in turns, medians."""
    quietly()
    loops = {name: made(entry, name, BATCH) for name in ["plain", *contenders]}
    x, y = batch_of(loops["plain"].case, BATCH)

    def turn() -> dict[str, float]:
        return {name: seconds_of(loop, x, y) for name, loop in loops.items()}

    turn()
    rounds = min(max(int(SECONDS / sum(turn().values())), ROUNDS[0]), ROUNDS[1])
    turns = [turn() for _ in range(rounds)]
    plain = 1e3 * statistics.median(seconds["plain"] for seconds in turns)
    return plain, {
        name: statistics.median(seconds[name] / seconds["plain"] for seconds in turns) for name in contenders
    }


def seconds_of(loop: Loop, x: Tensor, y: Tensor) -> float:
    start = time.process_time()
    loop.step(x, y)
    return time.process_time() - start


def peak(entry: Entry, contender: str) -> float:
    """Megabytes of a loop that is past its first step, model included, and past what a process sets up once."""
    quietly()
    give_memory_back_at_once()
    first = made(entry, contender, 2)
    for _ in range(2):
        first.step(*batch_of(first.case, 2))
    del first
    gc.collect()
    before = resident("VmRSS")
    loop = made(entry, contender, BATCH)
    x, y = batch_of(loop.case, BATCH)
    loop.step(x, y)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    for _ in range(3):
        loop.step(x, y)
    return resident("VmHWM") - before


def give_memory_back_at_once() -> None:
    """glibc's mallopt: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, so that what is freed does not hide what is needed."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-1, 0)
    libc.mallopt(-3, 1 << 15)


def resident(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024
