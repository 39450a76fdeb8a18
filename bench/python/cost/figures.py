# SPDX-License-Identifier: Apache-2.0
"""Figures that are made of several cells."""

from __future__ import annotations

from .cells import Cell
from .contenders import Contender
from .results import Results


def added_milliseconds(cell: Cell | None) -> float | None:
    if cell is None or cell.ratio is None or cell.plain_milliseconds is None:
        return None
    return (cell.ratio - 1) * cell.plain_milliseconds


def added_megabytes(cell: Cell | None) -> float | None:
    if cell is None or cell.megabytes is None or cell.plain_megabytes is None:
        return None
    return cell.megabytes - cell.plain_megabytes


def ordering_peers(contenders: list[Contender]) -> list[str]:
    return [contender.name for contender in contenders if contender.orders and not contender.ours]


def cheapest(results: Results, model: str, batch: int, names: list[str]) -> tuple[str, float] | None:
    """Who of those, and the milliseconds that it adds."""
    added = {name: added_milliseconds(results.cell(model, batch, name)) for name in names}
    found = [(milliseconds, name) for name, milliseconds in added.items() if milliseconds is not None]
    return (min(found)[1], min(found)[0]) if found else None


def share(results: Results, model: str, batch: int, name: str, peers: list[str]) -> float | None:
    """What it adds, as a part of what the cheapest of the peers adds."""
    added, peer = added_milliseconds(results.cell(model, batch, name)), cheapest(results, model, batch, peers)
    return None if added is None or peer is None else added / peer[1]
