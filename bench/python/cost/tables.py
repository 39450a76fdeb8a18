# SPDX-License-Identifier: Apache-2.0
"""The results as tables, for a terminal, for docs/benchmark.md and for the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..models.table import Notes
from .cells import MEASURED, NOT_BUILT, SKIPPED, Cell
from .contenders import Contender
from .figures import added_megabytes, added_milliseconds, cheapest, ordering_peers, share
from .goals import judged
from .growth import SERIES, Point, Series, exponent
from .models import MODELS
from .results import Results


@dataclass
class Table:
    title: str
    text: str
    head: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def plain(self) -> str:
        widths = [max(len(line[i]) for line in [self.head, *self.rows]) for i in range(len(self.head))]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in [self.head, *self.rows]
        ]
        return "\n".join([self.title, self.text, "", *lines, *([""] if self.notes else []), *self.notes, ""])

    def markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        rows = ["| " + " | ".join(line) + " |" for line in lines]
        return "\n".join(
            [f"### {self.title}", "", self.text, "", *rows, "", *self.notes, *([""] if self.notes else [])]
        )


def all_tables(results: Results, contenders: list[Contender]) -> list[Table]:
    tables = [
        ratio_table(results, contenders),
        goal_table(results, contenders),
        peer_table(results, contenders),
        memory_table(results, contenders),
        sorter_table(results),
        *(growth_table(results, series) for series in SERIES),
        examples_table(results),
        contender_table(contenders),
    ]
    return [table for table in tables if table.rows]


def measured_rows(results: Results) -> Iterator[tuple[str, str, int]]:
    """Name, title and batch of what is there, in the order of the models."""
    for entry in MODELS:
        for batch in results.batches(entry.name):
            yield entry.name, entry.says, batch


def ratio_table(results: Results, contenders: list[Contender]) -> Table:
    table = Table(
        "The whole step, as a multiple of the plain one",
        "CPU time of forward, backward, SGD and sampler on one thread: the median over interleaved rounds, ± half the "
        "range between the quartiles.",
        ["model", "parameters", "B", "plain, ms", *(contender.name for contender in contenders)],
    )  # fmt: skip
    notes = Notes()
    for name, says, batch in measured_rows(results):
        cells = [results.cell(name, batch, contender.name) for contender in contenders]
        plain = next((cell.plain_milliseconds for cell in cells if cell and cell.status == MEASURED), None)
        table.rows.append(
            [
                says,
                f"{results.entries['models'][name]:,}",
                str(batch),
                "-" if plain is None else f"{plain:.3g}",
                *(ratio_text(cell, who, notes) for cell, who in zip(cells, contenders, strict=True)),
            ]
        )
    table.notes = notes.lines()
    return table


def ratio_text(cell: Cell | None, contender: Contender, notes: Notes) -> str:
    if cell is None:
        return "-"
    if cell.status == MEASURED:
        assert cell.ratio is not None
        assert cell.quartiles is not None
        clock = f", clock {cell.clock_ratio:.2f}" if contender.threaded else ""
        return f"{cell.ratio:.2f} ± {(cell.quartiles[1] - cell.quartiles[0]) / 2:.2f}{clock}"
    says = {NOT_BUILT: "not built", SKIPPED: "skipped"}.get(cell.status, "fails")
    return f"{says} {notes.mark(cell.reason or '')}"


def memory_table(results: Results, contenders: list[Contender]) -> Table:
    table = Table(
        "Peak memory that it adds, in megabytes",
        "To the peak of the plain loop, model and examples included, after the first step; processes of their own.",
        ["model", "B", "plain", *(contender.name for contender in contenders)],
    )
    for name, says, batch in measured_rows(results):
        cells = [results.cell(name, batch, contender.name) for contender in contenders]
        plain = next((cell.plain_megabytes for cell in cells if cell and cell.status == MEASURED), None)
        if plain is not None:
            table.rows.append([says, str(batch), f"{plain:.0f}", *(memory_text(cell) for cell in cells)])
    return table


def memory_text(cell: Cell | None) -> str:
    added = added_megabytes(cell)
    return "-" if added is None else f"{added:+.1f}"


def peer_table(results: Results, contenders: list[Contender]) -> Table:
    """What grab-sampler adds, which makes the same order, and what the cheapest would if it had our sorter."""
    table = Table(
        "Cost added to the plain step, against peers that yield the same order",
        "Milliseconds. grab-sampler orders by itself; the gradients of torch.func and opacus are handed to our sorter.",
        ["model", "B", "exact", "fused", "grab-sampler", "cheapest", "it is", "exact / grab-sampler",
         "exact / cheapest", "fused / cheapest"],
    )  # fmt: skip
    peers = ordering_peers(contenders)
    for name, says, batch in measured_rows(results):
        added = [added_milliseconds(results.cell(name, batch, who)) for who in ("exact", "fused", "grab-sampler")]
        peer = cheapest(results, name, batch, peers)
        shares = [
            share(results, name, batch, "exact", ["grab-sampler"]),
            *(share(results, name, batch, way, peers) for way in ("exact", "fused")),
        ]
        if added[0] is not None:
            theirs = [f"{peer[1]:.3g}", peer[0]] if peer else ["-", "none"]
            figures = [*(number(value, ".3g") for value in added), *theirs]
            table.rows.append([says, str(batch), *figures, *(number(part, ".2f") for part in shares)])
    return table


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def goal_table(results: Results, contenders: list[Contender]) -> Table:
    table = Table(
        "Goals, and what was reached",
        "Whether a sketch keeps the gain of the exact order is not measured here, see docs/results.md.",
        ["goal", "where", "at most", "reached", ""],
    )
    for goal in judged(results, contenders):
        verdict = "met" if goal.reached <= goal.most else "missed"
        table.rows.append([goal.says, goal.where, f"{goal.most:.2f}", f"{goal.reached:.2f}", verdict])
    return table


def sorter_table(results: Results) -> Table:
    rows = results.entries["programs"].get("sorter", [])
    specs = list(rows[0]["multiples"]) if rows else []
    table = Table(
        "The sorter alone, in multiples of one read of the block",
        "One batch of B vectors of d numbers, by `bench_sorter --json`: medians of interleaved runs, CPU time.",
        ["d", "B", "read, ms", *(f"`{spec}`" for spec in specs)],
    )
    for row in rows:
        figures = [f"{row['multiples'][spec]:.2f}" for spec in specs]
        table.rows.append([f"{row['d']:,}", str(row["B"]), f"{row['read, ms']:.3g}", *figures])
    return table


def growth_table(results: Results, series: Series) -> Table:
    table = Table(f"Growth with {series.name}", f"{series.says}; exponents are of fitted powers.", [])
    for name, points in results.entries["growth"].get(series.name, {}).items():
        if points:
            append_growth(table, series.name, name, points, ["plain, ms", "added, ms", "plain, MB", "added, MB"])
    return table


def append_growth(table: Table, axis: str, name: str, points: list[Point], keys: list[str]) -> None:
    table.head = ["contender", axis, *keys]
    for point in points:
        table.rows.append([name, f"{point['at']:,.0f}", *(f"{point[key]:.3g}" for key in keys)])
    table.rows.append([name, "exponent", *(number(exponent(points, key), ".2f") for key in keys)])


def examples_table(results: Results) -> Table:
    points: list[Point] = results.entries["growth"].get("n", [])
    table = Table(
        "Growth with n",
        "A simulated epoch of n examples in batches of 64 with vectors of 16 numbers: the sampler's own work per step, "
        "handing out, codes and the next order included, beside torch's RandomSampler; exponents are of fitted powers.",
        [],
    )  # fmt: skip
    if points:
        append_growth(table, "n", "sampler", points, ["random, us", "pair, us", "random, MB", "pair, MB"])
    return table


def contender_table(contenders: list[Contender]) -> Table:
    rows = [[contender.name, contender.says] for contender in contenders]
    return Table("Contenders", "As they are called above.", ["name", "what it is"], rows)
