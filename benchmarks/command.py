"""What `surestep bench` does, once its arguments are known."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare import compare, differences, slower
from benchmarks.page import write_page
from benchmarks.records import load_suite, save_suite
from benchmarks.suite import require_parts, run_suite
from surestep.base.errors import RunFolderError, VerificationError
from surestep.base.progress import Reporter


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
