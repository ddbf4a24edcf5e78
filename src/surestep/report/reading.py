"""Panels for those who do not see them: a description in words, the numbers, the legend."""

import dataclasses
import math
import re

import numpy as np

from surestep.report.figures import Line, Panel
from surestep.report.page_tables import Cell, Heading, Table, number

ROWS = 12
"""About how many rows a table of a panel's numbers has."""


@dataclasses.dataclass(frozen=True)
class Key:
    """An entry of a legend: a sample of the line and what it means."""

    label: str
    style: str
    shape: str
    """`line`, `area` or `dot`."""


def describe(panel: Panel) -> str:
    """What a panel shows, in a few sentences."""
    if panel.bars:
        counted = "; ".join(f"{bars.label}: {sum(bars.heights):g}" for bars in panel.bars)
        text = f"Histogram of {panel.x_label}, number of {panel.y_label} in each bin. {counted}."
    else:
        scale = ", on a logarithmic scale" if panel.y_scale == "log" else ""
        text = f"{panel.y_label} against {panel.x_label}{scale}."
        text = text[0].upper() + text[1:]
        ends = [f"{line.label} {number(line.y[-1])}" for line in panel.lines if line.label]
        if ends:
            text += f" At the right end: {'; '.join(ends)}."
    if panel.marks:
        text += " Marked: " + "; ".join(f"{m.label} at {number(m.x)}" for m in panel.marks) + "."
    return text + " The numbers follow in a table."


def numbers(panel: Panel) -> list[Table]:
    """The numbers that a panel shows, at a few places."""
    tables: list[Table] = []
    lines = [*panel.lines, *panel.right]
    if lines:
        at = _places(panel)
        head = [[Heading(panel.x_label), *(Heading(line.label or "other") for line in lines)]]
        rows = [[Cell(number(x)), *(Cell(number(_value(line, x))) for line in lines)] for x in at]
        tables.append(Table(f"{panel.title}: {panel.y_label}", head, rows))
    if panel.bars:
        tables.append(_bins(panel))
    if panel.marks:
        head = [[Heading("Marked"), Heading(panel.x_label)]]
        rows = [[Cell(mark.label), Cell(number(mark.x))] for mark in panel.marks]
        tables.append(Table(f"{panel.title}: what is marked", head, rows))
    return tables


def _places(panel: Panel) -> list[float]:
    """Where the lines are read off: spread evenly over the axis, at values that lines have."""
    known = np.unique([x for line in (*panel.lines, *panel.right) for x in line.x])
    low, high = float(known[0]), float(known[-1])
    if panel.x_scale == "log":
        wanted = np.geomspace(low, high, ROWS)
    else:
        wanted = np.linspace(low, high, ROWS)
    return np.unique([known[np.argmin(np.abs(known - x))] for x in wanted]).tolist()


def _value(line: Line, x: float) -> float:
    """A line's value at a place, or at the last of its points before."""
    index = int(np.searchsorted(line.x, x, side="right")) - 1
    return line.y[index] if index >= 0 else math.nan


def _bins(panel: Panel) -> Table:
    """A histogram with its bins put together, five at a time."""
    edges = panel.bars[0].edges
    starts = np.arange(0, len(edges) - 1, 5)
    ends = [*starts[1:], len(edges) - 1]
    head = [[Heading(panel.x_label), *(Heading(bars.label) for bars in panel.bars)]]
    sums = [np.add.reduceat(np.asarray(bars.heights), starts) for bars in panel.bars]
    rows = [
        [
            Cell(f"{number(edges[a])} to {number(edges[b])}"),
            *(Cell(f"{counts[i]:g}") for counts in sums),
        ]
        for i, (a, b) in enumerate(zip(starts, ends, strict=True))
    ]
    return Table(f"{panel.title}: {panel.y_label}", head, rows)


def legend(panel: Panel, styles: dict[str, str]) -> list[Key]:
    """What colours and dashes mean: together where they can be told apart, else line by line."""
    keys = _factored(panel, styles) or [
        Key(line.label, f"{styles[line.group]} {line.dash}", "line")
        for line in panel.lines
        if line.label
    ]
    keys += [Key(bars.label, styles[bars.group], "area") for bars in panel.bars]
    keys += [Key(points.label, styles[points.group], "dot") for points in panel.points]
    return keys + [
        Key(mark.label, f"{styles[mark.group]} {mark.dash}", "line") for mark in panel.marks
    ]


def _factored(panel: Panel, styles: dict[str, str]) -> list[Key]:
    """Groups by colour and what dashes stand for, if labels are `group, meaning` throughout."""
    meanings: dict[str, str] = {}
    groups: dict[str, None] = {}
    for line in panel.lines:
        name, comma, rest = line.label.partition(f"{line.group}, ")
        rest = re.sub(r" \(\d+ missed\)$", "", rest)
        if name or not comma or meanings.setdefault(line.dash, rest) != rest:
            return []
        groups[line.group] = None
    return [
        *(Key(group, f"{styles[group]} solid", "line") for group in groups),
        *(Key(rest, f"plain {dash}", "line") for dash, rest in meanings.items()),
    ]
