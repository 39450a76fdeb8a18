# SPDX-License-Identifier: Apache-2.0
"""Rows as Markdown, with the reasons of refusals below."""

from __future__ import annotations

import re
import textwrap
from collections import Counter

from .measure import Result, Row

LONGEST = 240  # characters of a reason
DIFFERS = 1e-4  # of a peer, past which its error is said


class Notes:
    """Reasons, numbered as they come; one that comes again keeps its number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, text: str) -> str:
        return f"[{self.numbers.setdefault(text, len(self.numbers) + 1)}]"

    def lines(self) -> list[str]:
        return [f"{number}. `{tidy(text)}`" for text, number in self.numbers.items()]


def tidy(text: str) -> str:
    return textwrap.shorten(text.replace("`", "'"), LONGEST, placeholder=" ..")


def markdown(rows: list[Row], peers: list[str]) -> str:
    notes = Notes()
    header = ["family", "model", "parameters", "error", "rules", "plain, ms", "ratio", "MB", *peers]
    lines = [header, ["---"] * len(header)]
    family = ""
    for row in rows:
        lines.append([row.family if row.family != family else "", *cells(row, peers, notes)])
        family = row.family
    table = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([*table, "", *notes.lines()])


def cells(row: Row, peers: list[str], notes: Notes) -> list[str]:
    ours = row.results["cdgrab"]
    return [
        row.says,
        f"{row.numbers:,}",
        f"refused {notes.mark(ours.reason)}" if ours.reason else error_of(ours, row.tolerance),
        rules_of(row.rules),
        number(row.milliseconds, ".1f"),
        number(ours.ratio, ".2f"),
        number(ours.megabytes, "+.1f"),
        *(peer_of(row.results[name], row.tolerance, notes) for name in peers),
    ]


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def error_of(result: Result, tolerance: float) -> str:
    assert result.error is not None
    return f"{result.error:.0e}" if result.error <= tolerance else f"**wrong, {result.error:.0e}**"


def peer_of(result: Result, tolerance: float, notes: Notes) -> str:
    if result.reason:
        return f"fails {notes.mark(result.reason)}"
    assert result.error is not None
    differs = [] if result.error <= max(tolerance, DIFFERS) else [f"differs by {result.error:.0e}"]
    return ", ".join([*differs, number(result.ratio, ".2f"), number(result.megabytes, "+.1f")])


def rules_of(rules: list[str] | None) -> str:
    """How many parameters were read off each kind of node."""
    if rules is None:
        return "-"
    counts = Counter(re.sub(r"Backward\d*", "", rule).replace(", ", " + ") for rule in rules)
    return ", ".join(f"{count} {rule}" for rule, count in sorted(counts.items()))
