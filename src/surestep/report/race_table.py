"""The race that decided which rule was learned, as a table of the page."""

import math
from collections.abc import Mapping
from typing import Any

from surestep.evaluate.evaluated import Evaluated
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


def speed(evaluation: Evaluated) -> tuple[str, str] | None:
    """How fast the chosen rule is beside the fastest opponent, as a number and in words.

    To the finest accuracy, of those who miss it least often; None where there is no opponent.
    """
    names = [*evaluation.solvers, *evaluation.external]
    if len(names) < 2:
        return None
    times, missed = evaluation.mean_seconds()[:, -1], evaluation.missed_share()[:, -1]
    best = min(range(1, len(names)), key=lambda s: (missed[s], times[s]))
    finest = evaluation.accuracy_names()[-1]
    words = f"the speed of {names[best]}, the fastest opponent, to {finest}"
    if best < len(evaluation.solvers):
        batch = evaluation.seconds_batch[:, -1]
        words += f", one at a time; {_times(batch[best] / batch[0])} in a batch"
    return _times(times[best] / times[0]), words


def _times(value: float) -> str:
    return f"{value:.3g} \u00d7" if value < 10 else f"{value:.0f} \u00d7"


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
