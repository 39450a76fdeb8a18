# SPDX-License-Identifier: Apache-2.0
"""How time and memory grow: with the batch, the length of sequences, the parameters, and the examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler

import cdgrab

from ..measuring import cpu_seconds_of, give_memory_back_at_once, in_child, quietly, resident
from ..models.case import Case, Entry
from . import models
from .cells import MEASURED, measure_row, parameter_count
from .contenders import Contender


@dataclass(frozen=True)
class Series:
    """`case` and `batch` are those of a point; with `parameters` a point is drawn at how many its model has."""

    name: str
    says: str
    points: tuple[int, ...]
    case: Callable[[int], Callable[[], Case]]
    batch: Callable[[int], int]
    parameters: bool = False


SERIES = [
    Series("B", "MLP 784-1024-1024-10, batch B", (16, 32, 64, 128, 256), lambda _: models.mlp, lambda b: b),
    Series("T", "GPT 2x128, sequences of T, B = 8", (32, 64, 128, 256), lambda t: partial(models.gpt, 2, 128, t),
           lambda _: 8),
    Series("d", "MLP 784-w-w-10 with d parameters, B = 64", (128, 256, 512, 1024, 2048),
           lambda w: partial(models.mlp, w), lambda _: 64, parameters=True),
]  # fmt: skip
EXAMPLES = (10_000, 100_000, 1_000_000, 10_000_000)
SIMULATED_BATCH, SIMULATED_DIM = 64, 16

Point = dict[str, float]


def points_of(series: Series, contenders: list[Contender], seconds: float) -> dict[str, list[Point]]:
    """By contender: what a step takes and what it adds, at each point that could be measured."""
    found: dict[str, list[Point]] = {contender.name: [] for contender in contenders}
    for point in series.points:
        entry = Entry("growth", f"{series.name}={point}", series.case(point), series.says)
        at = float(parameter_count(entry)) if series.parameters else float(point)
        for name, cell in measure_row(entry, series.batch(point), contenders, seconds).items():
            if cell.status == MEASURED:
                figures = asdict(cell)
                found[name].append(
                    {
                        "at": at,
                        "plain, ms": figures["plain_milliseconds"],
                        "added, ms": figures["milliseconds"] - figures["plain_milliseconds"],
                        "plain, MB": figures["plain_megabytes"],
                        "added, MB": figures["megabytes"] - figures["plain_megabytes"],
                    }
                )
    return found


def simulate(examples: int, order: str | None) -> Point:
    """An epoch with short vectors: what is left is the sampler's own work. Without an order, torch's RandomSampler."""
    quietly()
    give_memory_back_at_once()
    rows = torch.randn(SIMULATED_BATCH, SIMULATED_DIM)
    before = resident("VmRSS")
    ordering = None if order is None else cdgrab.Sampler(examples, order)
    sampler: Sampler[int] = ordering if ordering is not None else RandomSampler(range(examples))
    steps = math.ceil(examples / SIMULATED_BATCH)

    def epoch() -> None:
        for batch in BatchSampler(sampler, SIMULATED_BATCH, drop_last=False):
            if ordering is not None:
                ordering.step(rows[: len(batch)])
        next(iter(sampler))  # the next order is made now

    seconds = cpu_seconds_of(epoch)
    return {"microseconds": 1e6 * seconds / steps, "megabytes": resident("VmHWM") - before}


def simulated_points(largest: int) -> list[Point]:
    """Up to `largest` examples, in processes of their own."""
    found = []
    for examples in (n for n in EXAMPLES if n <= largest):
        plain, ordered = in_child(simulate, examples, None), in_child(simulate, examples, "pair")
        found.append(
            {
                "at": float(examples),
                "random, us": plain["microseconds"],
                "pair, us": ordered["microseconds"],
                "random, MB": plain["megabytes"],
                "pair, MB": ordered["megabytes"],
            }
        )
    return found


def exponent(points: list[Point], key: str) -> float | None:
    """The slope of a line through the logarithms; None without two points above zero."""
    known = [(math.log(point["at"]), math.log(point[key])) for point in points if point[key] > 0]
    if len(known) < 2:
        return None
    x_mean = sum(x for x, _ in known) / len(known)
    y_mean = sum(y for _, y in known) / len(known)
    return sum((x - x_mean) * (y - y_mean) for x, y in known) / sum((x - x_mean) ** 2 for x, _ in known)
