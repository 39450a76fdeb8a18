# SPDX-License-Identifier: Apache-2.0
"""Two drawings for the page, in the classes of cli/report_style.inc: bars on a logarithmic axis, and lines on two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP = 760.0, 190.0, 70.0, 8.0


@dataclass
class Bar:
    name: str
    value: float
    text: str
    ours: bool


def framed(height: float, title: str, drawing: str) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><div class="frame" tabindex="0">'
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 {WIDTH:g} {height:g}" '
        f'aria-label="{escape(title)}">{drawing}</svg></div></figure>'
    )


def bars(title: str, values: list[Bar]) -> str:
    """Multiples, from 1."""
    stride, thickness = 28.0, 16.0
    longest = math.log(max(1.2, *(bar.value for bar in values)))
    drawing = ""
    for row, bar in enumerate(values):
        y = TOP + stride * row
        width = (WIDTH - LEFT - RIGHT) * max(0.0, math.log(bar.value)) / longest
        part = "part s0" if bar.ours else "part baseline"
        drawing += (
            f'<g class="bar"><text x="0" y="{y + 13:g}">{escape(bar.name)}</text>'
            f'<rect class="{part}" x="{LEFT:g}" y="{y:g}" width="{width:.1f}" height="{thickness:g}"/>'
            f'<text class="total" x="{LEFT + width + 8:.1f}" y="{y + 13:g}">{escape(bar.text)}</text></g>'
        )
    return framed(TOP + stride * len(values), title, drawing)


@dataclass
class Line:
    name: str
    points: list[tuple[float, float]]  # above zero


def lines(title: str, axis: str, unit: str, drawn: list[Line]) -> str:
    height, left, bottom = 300.0, 60.0, 262.0
    xs = [math.log(x) for line in drawn for x, _ in line.points]
    ys = [math.log(y) for line in drawn for _, y in line.points]
    low_x, low_y = min(xs), min(ys)
    wide, tall = max(max(xs) - low_x, 1e-9), max(max(ys) - low_y, 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (WIDTH - left - 160) * (math.log(x) - low_x) / wide,
            bottom - (bottom - 24) * (math.log(y) - low_y) / tall,
        )

    drawing = f'<g class="grid"><line class="axis" x1="{left:g}" y1="{bottom:g}" x2="{WIDTH - 160:g}" y2="{bottom:g}"/>'
    for x in sorted({x for line in drawn for x, _ in line.points}):
        drawing += (
            f'<text x="{place(x, math.exp(low_y))[0]:.1f}" y="{bottom + 18:g}" text-anchor="middle">{x:,.0f}</text>'
        )
    for y in powers_of_ten(low_y, low_y + tall):
        at = place(math.exp(low_x), y)[1]
        drawing += f'<line x1="{left:g}" y1="{at:.1f}" x2="{WIDTH - 160:g}" y2="{at:.1f}"/>'
        drawing += f'<text x="{left - 8:g}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>'
    drawing += f'<text x="0" y="14">{escape(unit)}</text>'
    drawing += f'<text x="{WIDTH - 125:g}" y="{bottom + 18:g}">{escape(axis)}</text></g>'
    labels = apart([place(*line.points[-1])[1] for line in drawn])
    for number, line in enumerate(drawn):
        places = [place(x, y) for x, y in line.points]
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places)
        label = f'<text x="{places[-1][0] + 10:.1f}" y="{labels[number] + 4:.1f}">{escape(line.name)}</text>'
        drawing += f'<g class="series s{number % 8}"><path d="{path}"/>{dots}{label}</g>'
    return framed(height, title, drawing)


def apart(heights: list[float]) -> list[float]:
    """Those of labels, moved down until none covers another."""
    placed = list(heights)
    lowest = -math.inf
    for number in sorted(range(len(heights)), key=heights.__getitem__):
        placed[number] = lowest = max(heights[number], lowest + 15.0)
    return placed


def powers_of_ten(low: float, high: float) -> list[float]:
    """Between two logarithms."""
    first, last = math.ceil(low / math.log(10) - 1e-9), math.floor(high / math.log(10) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]
