# SPDX-License-Identifier: Apache-2.0
"""One row of the table: a model at a batch size, with every contender. Memory of each in a process of its own, time
of all in turns in one process."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import cdgrab

from ..measuring import ChildFailed, first_sentence, in_child, limit_memory, peak, quietly
from ..models.case import Entry, batch_of
from ..models.oracle import trained
from .contenders import PLAIN, Contender

START_SECONDS = 30.0  # of a contender, four steps included; eight turns or more are timed then
CELL_MEGABYTES = 8192.0
TIMING_MEGABYTES = 16384.0  # of all who take turns in one process
TURN_SECONDS = 0.05  # or one step: a loop that has the processor to itself finds its own caches as it left them
ROUNDS = (3, 101)

MEASURED, FAILS, NOT_BUILT, SKIPPED = "measured", "fails", "not built", "skipped"

Seconds = tuple[float, float]  # of the processor, on the clock


@dataclass
class Cell:
    """Figures, or the reason why there are none. Ratios are to the plain step of the same round, and CPU time unless
    said otherwise; `plain_megabytes` and `megabytes` are peaks of the whole loop, model and examples included."""

    status: str
    reason: str | None = None
    seconds: float = 0.0  # that it was given
    plain_milliseconds: float | None = None
    milliseconds: float | None = None
    ratio: float | None = None
    quartiles: tuple[float, float] | None = None
    clock_ratio: float | None = None
    rounds: int | None = None
    plain_megabytes: float | None = None
    megabytes: float | None = None


def parameter_count(entry: Entry) -> int:
    return in_child(lambda: sum(p.numel() for p in trained(entry.build().model).values()))


def measure_row(entry: Entry, batch: int, contenders: list[Contender], seconds: float) -> dict[str, Cell]:
    """By contender's name; `seconds` of timing for each."""
    cells = row_of_cells(entry, batch, contenders, seconds)
    for cell in cells.values():
        cell.seconds = seconds
    return cells


def row_of_cells(entry: Entry, batch: int, contenders: list[Contender], seconds: float) -> dict[str, Cell]:
    plain = probe(entry, batch, PLAIN)
    if isinstance(plain, Cell):
        return {contender.name: Cell(SKIPPED, f"the plain step: {plain.reason}") for contender in contenders}
    probed = {contender.name: probe(entry, batch, contender) for contender in contenders}
    cells = {name: found for name, found in probed.items() if isinstance(found, Cell)}
    peaks = {name: found for name, found in probed.items() if not isinstance(found, Cell)}
    for group in groups_that_fit([one for one in contenders if one.name in peaks], peaks, plain):
        try:
            turns = in_child(time_turns, entry, batch, group, seconds)
        except Exception as error:
            cells |= {one.name: Cell(FAILS, first_sentence(error)) for one in group}
            continue
        for one in group:
            cells[one.name] = timed(turns, one.name)
            cells[one.name].plain_megabytes = plain
            cells[one.name].megabytes = peaks[one.name]
    return cells


def groups_that_fit(contenders: list[Contender], peaks: dict[str, float], plain: float) -> list[list[Contender]]:
    """In their order, in as few processes as have room for all of their contenders' peaks at once, and for the plain
    loop's: some keep what others free."""
    groups: list[list[Contender]] = []
    left = 0.0
    for contender in contenders:
        left -= peaks[contender.name]
        if not groups or left < 0.0:
            groups.append([])
            left = TIMING_MEGABYTES - plain - peaks[contender.name]
        groups[-1].append(contender)
    return groups


def probe(entry: Entry, batch: int, contender: Contender) -> float | Cell:
    """The peak of memory, or what is the matter."""
    try:
        return in_child(peak_of, entry, batch, contender, seconds=START_SECONDS)
    except ChildFailed as error:
        return Cell(SKIPPED, f"{error} for four steps" if "seconds" in str(error) else str(error))
    except NotBuilt as error:
        return Cell(NOT_BUILT, str(error))
    except Exception as error:  # any is a result here
        return Cell(FAILS, first_sentence(error))


class NotBuilt(RuntimeError):
    """An order that this cdgrab does not know."""


def make_step(entry: Entry, batch: int, contender: Contender) -> Callable[[], None]:
    """A turn: a step, or as many as it takes until its cost comes again."""
    case = entry.build()
    try:
        loop = contender.make(case, batch, contender.epoch)
    except cdgrab.UserError as error:
        if not contender.ours:
            raise
        raise NotBuilt(first_sentence(error)) from None
    x, y = batch_of(case, loop.examples)

    def turn() -> None:
        for _ in range(contender.turn):
            indices = loop.hand_out()
            loop.step(x[indices], y[indices])
        loop.end_turn()

    return turn


def peak_of(entry: Entry, batch: int, contender: Contender) -> float:
    limit_memory(CELL_MEGABYTES)
    return peak(lambda size: make_step(entry, size, contender), batch)


def time_turns(entry: Entry, batch: int, contenders: list[Contender], seconds: float) -> list[dict[str, Seconds]]:
    """Rounds in which all take turns, another one first each time. Those who are slow sit some rounds out; the plain
    loop never does."""
    quietly()
    limit_memory(TIMING_MEGABYTES)
    everyone = [PLAIN, *contenders]
    steps = {contender.name: make_step(entry, batch, contender) for contender in everyone}
    lengths = {contender.name: contender.turn for contender in everyone}
    repeats = dict.fromkeys(steps, 1)

    def play(names: list[str]) -> dict[str, Seconds]:
        return {name: seconds_of(steps[name], lengths[name], repeats[name]) for name in names}

    once = {name: processor * lengths[name] for name, (processor, _) in play(list(steps)).items()}
    repeats |= {name: max(math.ceil(TURN_SECONDS / taken), 1) for name, taken in once.items()}
    turns = {
        name: min(max(int(seconds / (taken * repeats[name])), ROUNDS[0]), ROUNDS[1]) for name, taken in once.items()
    }
    rounds = turns["plain"] = max(turns.values())
    return [play(rotated(taking_part(turns, number, rounds), number)) for number in range(rounds)]


def taking_part(turns: dict[str, int], number: int, rounds: int) -> list[str]:
    """Each as often as it has turns, as evenly as can be."""
    return [name for name, count in turns.items() if number * count // rounds != (number - 1) * count // rounds]


def rotated(names: list[str], first: int) -> list[str]:
    return names[first % len(names) :] + names[: first % len(names)]


def seconds_of(turn: Callable[[], None], steps: int, repeats: int) -> Seconds:
    """Of one step. What comes first is not timed: large blocks of memory come as others have left it."""
    turn()
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        turn()
    steps *= repeats
    return (time.process_time() - processor) / steps, (time.perf_counter() - clock) / steps


def timed(rounds: list[dict[str, Seconds]], name: str) -> Cell:
    played = [(turn[name], turn["plain"]) for turn in rounds if name in turn]
    lower, middle, upper = statistics.quantiles((own[0] / plain[0] for own, plain in played), n=4, method="inclusive")
    return Cell(
        MEASURED,
        plain_milliseconds=1e3 * statistics.median(plain[0] for _, plain in played),
        milliseconds=1e3 * statistics.median(own[0] for own, _ in played),
        ratio=middle,
        quartiles=(lower, upper),
        clock_ratio=statistics.median(own[1] / plain[1] for own, plain in played),
        rounds=len(played),
    )
