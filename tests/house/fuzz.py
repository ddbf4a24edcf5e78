"""Fuzzing of every loader: `make fuzz`, or `python -m house.fuzz --inputs 1000000` in `tests`.

An input is a file that is almost right. Its loader may refuse it, with an error of surestep's own,
or read it. Anything else is a crash: another exception, a program that is run, a file that is
written outside the input's folder, memory or time without bound. Crashes are kept as files.
"""

import argparse
import contextlib
import dataclasses
import logging
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jax

from house.fuzz_mutations import mutate
from house.fuzz_targets import Target, targets
from surestep.base.errors import SurestepError

SLOWEST = 5.0
"""Seconds that no input may take."""
MOST_MEMORY = 512 * 2**20
"""Bytes by which all inputs together may make the process larger."""

_RUNS = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class",
         "socket.connect"}  # fmt: skip
_WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate",
           "os.chmod", "shutil.rmtree"}  # fmt: skip


@dataclasses.dataclass
class Watch:
    """What the interpreter is seen to do while an input is loaded."""

    inside: Path | None = None
    seen: list[str] = dataclasses.field(default_factory=list)

    def hear(self, event: str, arguments: tuple) -> None:
        if self.inside is None:
            return
        if event in _RUNS:
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event in _WRITES or (event == "open" and _writes(arguments)):
            place = os.path.realpath(os.fsdecode(arguments[0])) if arguments else ""
            if not place.startswith(f"{self.inside}/"):
                self.seen.append(f"{event} {arguments!r:.200}")

    @contextlib.contextmanager
    def over(self, folder: Path) -> Iterator[None]:
        self.inside = folder
        try:
            yield
        finally:
            self.inside = None


def _writes(arguments: tuple) -> bool:
    if not isinstance(arguments[0], str | bytes | os.PathLike):
        return False
    flags = arguments[2] if isinstance(arguments[2], int) else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


@dataclasses.dataclass
class Outcome:
    """How one target did."""

    inputs: int = 0
    accepted: int = 0
    slowest: float = 0.0
    crashes: list[str] = dataclasses.field(default_factory=list)
    reasons: Counter = dataclasses.field(default_factory=Counter)


WATCH = Watch()
sys.addaudithook(WATCH.hear)


def attempt(target: Target, content: bytes, folder: Path, outcome: Outcome) -> str:
    """Load one input; returns what went wrong, or nothing."""
    (folder / target.file).write_bytes(content)
    outcome.inputs += 1
    began = time.perf_counter()
    wrong = ""
    try:
        with WATCH.over(folder):
            target.load(folder)
        outcome.accepted += 1
    except SurestepError as error:
        outcome.reasons[type(error).__name__] += 1
    except Exception:
        wrong = traceback.format_exc(limit=-4)
    took = time.perf_counter() - began
    outcome.slowest = max(outcome.slowest, took)
    if took > SLOWEST:
        wrong += f"took {took:.1f} s\n"
    if WATCH.seen:
        wrong += f"did {WATCH.seen}\n"
        WATCH.seen.clear()
    return wrong


def fuzz(inputs: int, seed: int, keep: Path, only: list[str] | None = None) -> dict[str, Outcome]:
    """Try so many inputs, spread over the loaders by their weights; crashes are kept in a folder.

    An input is made from the seed, its target and its number: it can be made again.
    """
    with (
        tempfile.TemporaryDirectory(prefix="surestep-fuzz", dir=_quick()) as place,
        _quiet(),
        jax.enable_x64(True),
    ):
        folder = Path(place).resolve()
        known = targets(folder)
        chosen = {name: known[name] for name in only or known}
        total = sum(target.weight for target in chosen.values())
        outcomes = {}
        for name, target in chosen.items():
            outcome = outcomes[name] = Outcome()
            for seed_file in target.seeds:
                wrong = attempt(target, seed_file, folder, outcome)
                assert not wrong and outcome.accepted == outcome.inputs, (name, wrong)
            for number in range(round(inputs * target.weight / total)):
                chance = random.Random(f"{seed} {name} {number}")
                content = mutate(target.kind, target.seeds, chance)
                wrong = attempt(target, content, folder, outcome)
                if wrong:
                    outcome.crashes.append(f"{name} {number}: {wrong}")
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{name}-{seed}-{number}").write_bytes(content)
            # What the next targets find beside their own file is right.
            (folder / target.file).write_bytes(target.seeds[0])
    return outcomes


def _quick() -> str | None:
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and os.access(memory, os.W_OK) else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Damage is logged, and NumPy warns of odd headers: a million times is too often."""
    logger = logging.getLogger("surestep")
    before, logger.disabled = logger.disabled, True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.disabled = before


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="for crashes")
    parser.add_argument("--only", nargs="+", help="targets")
    given = parser.parse_args()
    fuzz(200, given.seed, given.keep, given.only)  # compiles what loading needs
    before, began, worked = peak(), time.monotonic(), time.process_time()
    outcomes = fuzz(given.inputs, given.seed + 1, given.keep, given.only)
    grown = peak() - before
    print(f"{'loader':<12}{'inputs':>10}{'read':>10}{'refused':>10}{'slowest':>12}{'crashes':>9}")
    for name, outcome in outcomes.items():
        refused = sum(outcome.reasons.values())
        print(
            f"{name:<12}{outcome.inputs:>10}{outcome.accepted:>10}{refused:>10}"
            f"{outcome.slowest * 1e3:>9.1f} ms{len(outcome.crashes):>9}"
        )
    crashes = [crash for outcome in outcomes.values() for crash in outcome.crashes]
    inputs = sum(outcome.inputs for outcome in outcomes.values())
    print(
        f"{inputs} inputs, {len(crashes)} crashes, {time.monotonic() - began:.0f} s "
        f"({time.process_time() - worked:.0f} s of CPU time), "
        f"memory grew by {grown / 2**20:.0f} MiB"
    )
    for crash in crashes[:20]:
        print(crash)
    return int(bool(crashes) or grown > MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
