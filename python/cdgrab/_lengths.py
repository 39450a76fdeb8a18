# SPDX-License-Identifier: Apache-2.0
"""How much each of many ranks hands out in a pass. All ranks count alike, from what all of them know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cdgrab.errors import UserError


class Rest(NamedTuple):
    """What a pass has, in units."""

    real: list[int]  # by worker
    filled: list[int] | None  # by slot: with repeats, for all ranks alike; None: nothing is repeated
    before: list[int]  # by slot: what came before the pass in its epoch
    seen: Sequence[int]  # by worker, before the pass
    dealt_anew: bool


class Batches(NamedTuple):
    """What a loader makes of the examples; a size of 0 is not known."""

    size: int
    drop_last: bool


ANY = Batches(0, False)


class Lengths:
    """Of passes over the shares of workers that ranks host, side by side: the k-th of each rank are *slot* k."""

    def __init__(self, sizes: Sequence[int], unit: int, padding: str, ranks: int) -> None:
        workers = len(sizes)
        self._sizes, self._unit, self._padding = sizes, unit, padding
        self._units = [-(-size // unit) for size in sizes]
        self._hosted = [range(r * workers // ranks, (r + 1) * workers // ranks) for r in range(ranks)]
        self.slots = [[own[k] for own in self._hosted if k < len(own)] for k in range(-(-workers // ranks))]
        # What DDP's step needs of a last batch of repeats: to be dropped, or not, with that of the longest share.
        self._last = max(sizes, default=0) % unit or unit
        self._check()
        self.whole = self.rest([0] * workers)

    def _check(self) -> None:
        workers, ranks = len(self._sizes), len(self._hosted)
        if self._padding == "drop" and workers % ranks:
            raise UserError(
                f"{workers} workers on {ranks} ranks with padding='drop'; some ranks would have more batches than "
                f"others: take 'pad', or 'uneven' and Join, or as many workers as {ranks} or a multiple of it"
            )
        for worker, (size, units) in enumerate(zip(self._sizes, self._units, strict=True)):
            if self._padding == "pad" and size % self._unit and units < max(self._units):
                raise UserError(
                    f"worker {worker} has {size} examples, and repeats would come into its short last unit; give "
                    f"shares that are multiples of unit={self._unit}, or padding='drop' or 'uneven'"
                )

    def units(self, examples: Sequence[int]) -> list[int]:
        """Whole units among the first so many examples of each worker."""
        return [
            units if count >= size else count // self._unit
            for count, size, units in zip(examples, self._sizes, self._units, strict=True)
        ]

    def rest(self, seen: Sequence[int], dealt_anew: bool = False) -> Rest:
        """Of an epoch in which the workers have seen so many units.

        `dealt_anew`: under other shares, so that lengths of whole epochs say nothing; every unit that is left is
        handed out, by `drop` too.
        """
        most = max(self._units, default=0)
        whole = self._units
        if self._padding == "drop" and not dealt_anew:
            most = min(self._units, default=0)
            whole = [most] * len(whole)
        real = [max(0, units - done) for units, done in zip(whole, seen, strict=True)]
        filled: list[int] | None = None
        before = [max(seen[w] for w in slot) for slot in self.slots]
        if self._padding != "uneven" and dealt_anew:
            filled = [max(real[w] for w in slot) for slot in self.slots]
            before = [0] * len(self.slots)
        elif self._padding != "uneven":
            filled = [self._filled(slot, real, seen, most) for slot in self.slots]
            before = [most - units for units in filled]
        return Rest(real, filled, before, seen, dealt_anew)

    def _filled(self, slot: list[int], real: list[int], seen: Sequence[int], most: int) -> int:
        """Workers of a slot go on side by side, so one that is through has repeated what the others have seen."""
        if any(real[w] for w in slot):
            return max(most - seen[w] for w in slot if real[w])
        going_on = [seen[w] for w in range(len(real)) if real[w]]
        if not going_on:
            return 0
        return max(0, most - max(going_on + [self._units[w] for w in slot]))

    def lane(self, rank: int, slot: int, rest: Rest, batches: Batches) -> tuple[int, int]:
        """Examples that a rank's worker in this slot, or nobody, hands out, and repeats after them.

        Of several lanes each is cut to whole batches if the loader drops others, so that none is of two workers.
        """
        own = self._hosted[rank]
        examples = units = 0
        if slot < len(own):
            worker = own[slot]
            units = rest.real[worker]
            examples = min(units * self._unit, max(0, self._sizes[worker] - rest.seen[worker] * self._unit))
        missing = 0 if rest.filled is None else rest.filled[slot] - units
        repeats = (missing - 1) * self._unit + self._last if missing > 0 else 0
        if len(self.slots) > 1 and batches.size:
            over = (examples + repeats) % batches.size
            if rest.dealt_anew and rest.filled is not None and over:
                repeats += batches.size - over
            elif batches.drop_last:
                examples -= max(0, over - repeats)
                repeats -= min(over, repeats)
        return examples, repeats

    def total(self, rank: int, rest: Rest, batches: Batches = ANY) -> int:
        return sum(sum(self.lane(rank, slot, rest, batches)) for slot in range(len(self.slots)))

    def longest(self, rest: Rest, batches: Batches) -> int:
        return max(self.total(rank, rest, batches) for rank in range(len(self._hosted)))

    def repeats_in_all(self, rank: int, slot: int, batches: Batches) -> int:
        """Of a whole epoch."""
        return self.lane(rank, slot, self.whole, batches)[1]
