"""The race that decided which rule was learned, as a table of the page."""

import math
from collections.abc import Mapping
from typing import Any

from surestep.report.page_tables import Cell, Heading, Table, duration

_HEAD = (
    "Candidate", "Trained", "Iterations", "A solve, alone", "A solve, in a batch", "Beside the best"
)  # fmt: skip


def race_table(noted: Mapping[str, Any]) -> Table | None:
    """All candidates, the chosen one first; none where there was no race."""
    entries = noted.get("entries", ())
    if not entries:
        return None
    best = min(map(_score, entries))
    rows = [
        [
            Cell(entry["name"], "" if place else "chosen", "good"),
            Cell("yes" if entry["trained"] else "no"),
            Cell(_whole(float(entry["iterations"]))),
            Cell(_time(float(entry["alone"]))),
            Cell(_time(float(entry["batch"]))),
            Cell(_ratio(_score(entry) / best)),
        ]
        for place, entry in enumerate(entries)
    ]
    return Table("Candidates by the time to the accuracy", [list(map(Heading, _HEAD))], rows)


def _score(entry: Mapping[str, Any]) -> float:
    times = [float(entry[name]) for name in ("alone", "batch")]
    finite = [time for time in times if math.isfinite(time)]
    return math.prod(finite) ** (1 / len(finite)) if finite else math.inf


def _whole(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "not in time"


def _time(seconds: float) -> str:
    return duration(seconds) if math.isfinite(seconds) else "\u2013"


def _ratio(value: float) -> str:
    return f"{value:.2f} times" if math.isfinite(value) else "\u2013"
