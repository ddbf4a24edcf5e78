"""What `python -m benchmarks.strangers` does."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.strangers.families import ALL, CONTESTED
from benchmarks.strangers.page import page
from benchmarks.strangers.processes import (
    interruptions,
    interruptions_page,
    walls,
    walls_page,
)
from benchmarks.strangers.records import load_table
from benchmarks.strangers.table import Effort, measure
from benchmarks.strangers.timing import FAR, ROUNDS
from surestep.base.errors import ConfigurationError, SurestepError, unknown
from surestep.cli.arguments import parse
from surestep.cli.explanation import explain

PROGRAM = "python -m benchmarks.strangers"


@dataclasses.dataclass(frozen=True)
class TableArguments:
    """Fit every family, and time ours and all opponents to equal accuracy."""

    family: tuple[str, ...] = CONTESTED
    """Which families, in this order."""
    budget: str = "1m"
    """What a fit may take; with `none`, only opponents are measured."""
    seed: int = 0
    """Of the fits."""
    rounds: int = ROUNDS
    """How often everyone is timed."""
    far: float = FAR
    """Who is so many times slower than the fastest at first sight is timed once."""
    out: Path = Path("build/strangers.json")
    """Where results go; families that the file has already are kept."""


@dataclasses.dataclass(frozen=True)
class PageArguments:
    """Print stored results as Markdown."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE.json")]
    """What `table` wrote."""


@dataclasses.dataclass(frozen=True)
class BudgetsArguments:
    """Run `surestep run` on every family with several budgets, and note the seconds."""

    family: tuple[str, ...] = ALL
    """Which families, in this order."""
    budgets: tuple[str, ...] = ("30s", "1m", "5m")
    """What fits may take."""
    out: Path = Path("build/strangers-budgets.json")
    """Where results go."""


@dataclasses.dataclass(frozen=True)
class InterruptArguments:
    """Interrupt `surestep run` at random moments, and note the seconds until it is gone."""

    family: tuple[str, ...] = ALL
    """Which families, in this order."""
    tries: int = 10
    """How many fits of a family are interrupted."""
    budget: str = "1m"
    """What a fit may take."""
    span: float = 60.0
    """Seconds from the start within which interruptions fall."""
    seed: int = 0
    """Of the moments."""
    out: Path = Path("build/strangers-interruptions.json")
    """Where results go."""


def main(words: list[str] | None = None) -> int:
    """Carry out a command, and return the exit code."""
    words = sys.argv[1:] if words is None else words
    try:
        if not words or words[0] not in COMMANDS:
            raise ConfigurationError(f"say what to do: {PROGRAM} {' | '.join(COMMANDS)}")
        COMMANDS[words[0]](words[1:])
        return 0
    except (SurestepError, BrokenPipeError, KeyboardInterrupt) as error:
        return explain(error)


def say(line: str) -> None:
    """Progress goes to the other stream, at once."""
    print(line, file=sys.stderr, flush=True)


def require_families(names: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuse a name that is none."""
    for name in names:
        if name not in known:
            raise ConfigurationError(unknown("family", name, known))


def _table(words: list[str]) -> None:
    given = parse(TableArguments, words, f"{PROGRAM} table")
    require_families(given.family, CONTESTED)
    effort = Effort(given.budget, given.seed, given.rounds, given.far)
    print(page(measure(given.family, effort, given.out, say)))


def _page(words: list[str]) -> None:
    print(page(load_table(parse(PageArguments, words, f"{PROGRAM} page").file)))


def _budgets(words: list[str]) -> None:
    given = parse(BudgetsArguments, words, f"{PROGRAM} budgets")
    require_families(given.family, ALL)
    print(walls_page(walls(given.family, given.budgets, given.out, say)))


def _interrupt(words: list[str]) -> None:
    given = parse(InterruptArguments, words, f"{PROGRAM} interrupt")
    require_families(given.family, ALL)
    found = interruptions(
        given.family, given.tries, given.budget, given.span, given.seed, given.out, say
    )
    print(interruptions_page(found))


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "table": _table,
    "page": _page,
    "budgets": _budgets,
    "interrupt": _interrupt,
}
