# SPDX-License-Identifier: Apache-2.0
"""One page that needs nothing else: the tables, and drawings of them, in the look of the pages that cdgrab writes."""

from __future__ import annotations

from html import escape
from pathlib import Path

from .cells import MEASURED
from .contenders import Contender
from .growth import SERIES
from .results import Results
from .svg import Bar, Line, bars, lines
from .tables import Table, all_tables, measured_rows

STYLE = Path(__file__).parents[3] / "cli" / "report_style.inc"


def style() -> str:
    """The file is a literal of C++."""
    return STYLE.read_text().strip().removeprefix('R"css(').removesuffix(')css"')


def table_html(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for row in table.rows
    )
    notes = "".join(f"<li>{escape(note.split('. ', 1)[-1].strip('`'))}</li>" for note in table.notes)
    listed = f'<ol class="notes">{notes}</ol>\n' if notes else ""
    return (
        f"<h2>{escape(table.title)}</h2>\n"
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{rows}</tbody></table></div>\n"
        f'<p class="caption">{escape(table.text)}</p>\n{listed}'
    ).replace("`", "")


def section(title: str, text: str, drawings: str) -> str:
    return f'<h2>{title}</h2><p class="text">{text}</p>{drawings}\n' if drawings else ""


def bar_charts(results: Results, contenders: list[Contender]) -> str:
    drawn = ""
    for name, says, batch in measured_rows(results):
        values = []
        for contender in contenders:
            cell = results.cell(name, batch, contender.name)
            if cell is not None and cell.status == MEASURED and cell.ratio is not None:
                values.append(Bar(contender.name, cell.ratio, f"{cell.ratio:.2f}", contender.ours))
        if values:
            drawn += bars(f"{says}, B = {batch}", values)
    return section("The same, drawn", "On a logarithmic axis that begins at the plain step; blue is cdgrab.", drawn)


def growth_charts(results: Results) -> str:
    drawn = ""
    for series in SERIES:
        by_name = results.entries["growth"].get(series.name, {})
        for key, unit in (("ms", "milliseconds"), ("MB", "megabytes")):
            shown = [
                Line(who, [(point["at"], point[figure]) for point in points if point[figure] > 0])
                for who, points, figure in figures_of(by_name, key)
            ]
            shown = [line for line in shown if len(line.points) > 1]
            if shown:
                drawn += lines(f"{series.says}: {unit} of a step", series.name, unit, shown)
    return section("Growth, drawn", "Both axes are logarithmic: a power is a straight line.", drawn)


def figures_of(by_name: dict[str, list[dict[str, float]]], key: str) -> list[tuple[str, list[dict[str, float]], str]]:
    measured = {name: points for name, points in by_name.items() if points}
    plain = [("plain", points, f"plain, {key}") for points in list(measured.values())[:1]]
    return plain + [(f"{name} adds", points, f"added, {key}") for name, points in measured.items()]


def page(results: Results, contenders: list[Contender], command: str) -> str:
    texts = "".join(
        f"<h2>bench_{escape(name)}</h2>\n<pre>{escape(text)}</pre>\n"
        for name, text in results.entries["programs"].items()
        if isinstance(text, str)
    )
    tables = all_tables(results, contenders)
    settings = "".join(
        f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in results.entries["environment"].items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>What ordering costs</title><style>{style()}</style></head>\n<body><main>\n"
        '<p class="kicker">cdgrab · benchmark</p><h1>What ordering costs, and what the alternatives do</h1>\n'
        '<p class="lead">Training steps on one thread, every contender in turn, as multiples of the plain step.</p>\n'
        + "".join(table_html(table) for table in tables[:1])
        + bar_charts(results, contenders)
        + "".join(table_html(table) for table in tables[1:])
        + growth_charts(results)
        + texts
        + f"<h2>How it was made</h2><dl>{settings}</dl><pre>{escape(command)}</pre>\n"
        "<footer>docs/benchmark.md says what is measured, and how.</footer>\n</main></body></html>\n"
    )
