"""`docs/results.md`, made from stored results: `make results`.

Records of runs lie under `docs/results/` as JSON: for every run its problem, preset, seed, version,
device and numbers, and notes about what was observed. The certificates of some runs lie beside
them. `results.md.j2` says which of these numbers the page shows where.
"""

import json
import re
from pathlib import Path
from typing import Any

import jinja2

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "results.md"
TEMPLATE = "results.md.j2"

Record = dict[str, Any]


def read(name: str, folder: Path = STORED) -> Record:
    """A stored file. Numbers stay as they are written, so that the page shows no other digits."""
    text = (folder / name).read_text(encoding="utf-8")
    return json.loads(text, parse_float=str, parse_int=str)


def certificate(name: str) -> Record:
    """What a stored certificate says, with the digits of its own sentences.

    These are rounded to the safe side: a probability down, a loss up.
    """
    stored = read(name)
    said = {one["name"]: one["sentence"] for one in stored["statements"]}
    return {
        "iterations": stored["horizon"],
        "instances": stored["sizes"]["train"],
        "success": _number(r"probability at least (\S+)\.$", said["missing the goal"]),
        "quantile_80": _number(r"a loss of at most (\S+) ", said["losses over iterations"]),
        "clipped_mean": _number(r"is at most (\S+) in expectation", said["loss, clipped"]),
        "clip": _number(r"counted as (\S+) ", said["loss, clipped"]),
    }


def cell(value: Any) -> str:
    """A value of a record as text.

    Measurements to several accuracies are lists; a pair of median and 90th percentile is printed
    as `median/p90`. What was not reached is null and printed as a dash.
    """
    match value:
        case None:
            return "-"
        case {"median": median, "p90": high}:
            return f"{cell(median)}/{cell(high)}"
        case list():
            pairs = any(isinstance(one, dict) for one in value)
            return (", " if pairs else " / ").join(map(cell, value))
        case _:
            return str(value)


def along(runs: list[Record], *path: str | int) -> list[Any]:
    """One number of every run: `along(runs, "gradients", "learned", 0)`."""
    found: list[Any] = list(runs)
    for step in path:
        found = [one[step] for one in found]
    return found


def span(runs: list[Record], *path: str | int) -> str:
    """The smallest and the largest of a number over runs; what was not reached is the largest."""
    values = sorted(along(runs, *path), key=lambda one: float(one or "inf"))
    first, last = cell(values[0]), cell(values[-1])
    return first if first == last else f"{first} to {last}"


def page() -> str:
    """The page as Markdown."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        finalize=cell,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    tools = {"read": read, "certificate": certificate, "along": along, "span": span}
    return environment.get_template(TEMPLATE).render(tools)


def _number(pattern: str, sentence: str) -> str:
    found = re.search(pattern, sentence)
    if found is None:
        raise ValueError(f"no {pattern!r} in {sentence!r}")
    return found[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE}")
