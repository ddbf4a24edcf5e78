"""What `python -m benchmarks` does."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from benchmarks.compare import compare, differences, slower
from benchmarks.page import write_page
from benchmarks.records import load_suite, save_suite
from benchmarks.suite import require_parts, run_suite
from surestep.base.errors import (
    ConfigurationError,
    RunFolderError,
    SurestepError,
    VerificationError,
)
from surestep.base.progress import Reporter
from surestep.cli.arguments import parse, unset
from surestep.cli.explanation import explain
from surestep.cli.interruption import stopping_safely
from surestep.cli.reporting import reporter


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Measure how long every stage takes, how that grows, and how much of the machine it uses.

    With --compare nothing is measured: two files are compared, and exit code 5 says that something
    has become slower by more than noise explains.
    """

    quick: bool = False
    """Smaller sizes, fewer rounds."""
    only: Annotated[tuple[str, ...] | None, unset("PART [PART ...]")] = None
    """Stages, like split or certify, and speed, memory or learned."""
    out: Annotated[Path | None, unset("DIR")] = None
    """Where results and page go (bench)."""
    compare: Annotated[tuple[Path, Path] | None, unset("OLD.json NEW.json")] = None
    """Two files of results."""


def main(words: list[str] | None = None) -> int:
    """Measure or compare, and return the exit code."""
    try:
        with stopping_safely():
            given = parse(
                Arguments, sys.argv[1:] if words is None else words, "python -m benchmarks"
            )
            carry_out(given)
            return 0
    except (SurestepError, BrokenPipeError, KeyboardInterrupt) as error:
        return explain(error)


def carry_out(given: Arguments) -> None:
    """Measure, or compare two files."""
    if given.compare is None:
        run_benchmarks(given.only or (), given.quick, given.out or Path("bench"), reporter())
    elif given.quick or given.only or given.out:
        raise ConfigurationError("--compare measures nothing: it goes with no other option")
    else:
        compare_benchmarks(*given.compare)


def run_benchmarks(only: Sequence[str], quick: bool, out: Path, report: Reporter) -> None:
    """Measure, and write `bench.json` and the page `benchmarks.md` with its figures."""
    require_parts(only)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{out} cannot be a folder: {error.strerror or error}") from error
    suite = run_suite(only, quick, report)
    save_suite(suite, out / "bench.json")
    print(write_page(suite, out).read_text())
    print(f"results: {out / 'bench.json'}")
    print(f"page:    {out / 'benchmarks.md'}")


def compare_benchmarks(old: Path, new: Path) -> None:
    """Print every change; one that is slower beyond noise is an error."""
    before, after = load_suite(old), load_suite(new)
    changes = compare(before, after)
    for line in differences(before, after):
        print(f"not alike: {line}")
    for change in changes:
        print(change)
    flagged = slower(changes)
    if flagged:
        raise VerificationError(
            f"{len(flagged)} of {len(changes)} benchmarks are slower beyond noise: "
            + ", ".join(change.name for change in flagged)
        )
    print(f"none of {len(changes)} benchmarks is slower beyond noise")
