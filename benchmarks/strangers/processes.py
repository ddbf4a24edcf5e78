"""Fits as commands in processes of their own: how long they take, and how soon Ctrl-C ends them.

Every process keeps its compiled programs in a folder that is empty at first, as on a stranger's
machine.
"""

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import surestep
from surestep.base.errors import ConfigurationError
from surestep.storage.files import write_text
from surestep.storage.records import to_json

PROBLEMS = Path(__file__).parent / "problems"
PATIENCE = 300.0
"""Seconds after which a process that was interrupted is ended by force."""

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Wall:
    """One fit."""

    family: str
    budget: str
    seconds: float
    """From the command to the end of its process."""
    code: int
    said: str
    """The last line, where the code is not 0."""


@dataclasses.dataclass(frozen=True)
class Interrupted:
    """One fit that was interrupted."""

    family: str
    after: float
    """Seconds from the command to Ctrl-C."""
    seconds: float
    """From Ctrl-C to the end of the process; infinite if it had to be ended by force."""
    code: int | None
    """None if the fit was finished before."""
    doing: str
    """What it last said before Ctrl-C."""
    said: str = ""
    """What it said last of all."""


def walls(families: Sequence[str], budgets: Sequence[str], out: Path, say: Say) -> list[Wall]:
    """Fit every family with every budget, one after the other; the file grows with each."""
    found: list[Wall] = []
    for name in families:
        for budget in budgets:
            with running(name, budget) as (process, log):
                began = time.monotonic()
                code = process.wait()
                seconds = time.monotonic() - began
                said = "" if code == 0 else last_line(log)
            found.append(Wall(name, budget, seconds, code, said))
            write_text(out, to_json(found))
            say(f"{name}, {budget}: {seconds:.0f} s, exit code {code} {said}")
    return found


def interruptions(
    families: Sequence[str], tries: int, budget: str, span: float, seed: int, out: Path, say: Say
) -> list[Interrupted]:
    """Interrupt fits at random moments of their first `span` seconds, one in each equal part."""
    if tries < 1 or not span > 0:
        raise ConfigurationError(f"tries and span must be positive, not {tries} and {span}")
    chance, found = random.Random(seed), list[Interrupted]()
    for name in families:
        for number in range(tries):
            after = span * (number + chance.random()) / tries
            one = interrupted(name, budget, after)
            found.append(one)
            write_text(out, to_json(found))
            say(
                f"{name}, after {after:.1f} s: gone in {one.seconds:.2f} s, exit code {one.code} "
                f"({one.doing}; then: {one.said})"
            )
    return found


def interrupted(name: str, budget: str, after: float) -> Interrupted:
    """Start a fit, send Ctrl-C, and wait until the process is gone."""
    with running(name, budget) as (process, log):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after)
            return Interrupted(name, after, 0.0, None, "finished before")
        doing = last_line(log)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return Interrupted(name, after, float("inf"), None, doing)
        seconds = time.monotonic() - began
        return Interrupted(name, after, seconds, code, doing, last_line(log))


@contextlib.contextmanager
def running(name: str, budget: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`surestep run` on a stranger's file, in a folder that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="surestep-stranger-") as folder:
        place = Path(folder)
        environment = os.environ | {
            "PYTHONPATH": str(Path(surestep.__file__).parents[1]),
            "SURESTEP_CACHE": str(place / "cache"),
            "PYTHONUNBUFFERED": "1",
        }
        log = place / "said"
        command = [
            sys.executable, "-m", "surestep.cli", "run", str(PROBLEMS / f"{name}.py"),
            "--budget", budget, "--out", str(place / "run"),
        ]  # fmt: skip
        with log.open("wb") as file, heard():
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, cwd=place, env=environment
            )
        try:
            yield process, log
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """A process that is started here listens to Ctrl-C even if this one does not."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if before is signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)


def last_line(log: Path) -> str:
    """The last thing that a process said."""
    lines = log.read_text(errors="replace").replace("\r", "\n").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:200] if said else "nothing said yet"


def walls_page(found: Sequence[Wall]) -> str:
    """Seconds by family and budget."""
    budgets = list(dict.fromkeys(one.budget for one in found))
    lines = [
        f"| family | {' | '.join(budgets)} |",
        "| --- |" + " --- |" * len(budgets),
    ]
    for name in dict.fromkeys(one.family for one in found):
        cells = {
            one.budget: f"{one.seconds:.0f} s" + (f" (exit code {one.code})" if one.code else "")
            for one in found
            if one.family == name
        }
        lines.append(f"| {name} | {' | '.join(cells.get(b, '-') for b in budgets)} |")
    return "\n".join(lines)


def interruptions_page(found: Sequence[Interrupted]) -> str:
    """The slowest and the typical end of every family's fits."""
    lines = [
        "| family | interrupted | until gone: median s | longest s | longest while | exit codes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(one.family for one in found):
        ended = sorted(
            (one for one in found if one.family == name and one.doing != "finished before"),
            key=lambda one: one.seconds,
        )
        if ended:
            middle, longest = ended[len(ended) // 2], ended[-1]
            codes = ", ".join(sorted({str(one.code) for one in ended}))
            lines.append(
                f"| {name} | {len(ended)} | {middle.seconds:.2f} | {longest.seconds:.2f} "
                f"| {longest.doing} | {codes} |"
            )
    return "\n".join(lines)
