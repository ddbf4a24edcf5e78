"""What was measured, as it is stored: raw numbers, from which pages and comparisons are made."""

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

from surestep.base.errors import RunFolderError
from surestep.storage.files import write_text
from surestep.storage.records import from_plain, to_json

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Measured:
    """One thing at one size, timed in several rounds."""

    stage: str
    axis: str
    """What is varied: instances, samples, iterations, steps or dimension."""
    size: int
    seconds: list[float]
    """On the clock, for each round."""
    processor: list[float]
    """Of processor time, over all threads, for each round."""
    anchor: list[float]
    """Processor time of the matrix product in the same rounds."""
    expected: float
    """The exponent that the design promises; not a number where it promises none."""
    temporary_bytes: int = -1
    """What the compiled program needs beside its arguments and results; -1 if there is none."""

    @property
    def name(self) -> str:
        """What comparisons know it by."""
        return f"{self.stage} {self.axis} {self.size}"

    @property
    def best(self) -> float:
        """The least processor time: what it takes when nothing disturbs."""
        return min(self.processor)

    @property
    def typical(self) -> float:
        """The median processor time."""
        return statistics.median(self.processor)


@dataclasses.dataclass(frozen=True)
class Speed:
    """A hot path as a share of the machine's rate of matrix products."""

    name: str
    unit: str
    """What there are many of in a call: rollouts, steps."""
    units: int
    """How many there are in a call."""
    precision: str
    seconds: list[float]
    processor: list[float]
    anchor: list[float]
    """Processor time of the matrix product of the same precision, in the same rounds."""
    product_flops: float
    """Operations of a call's matrix products and convolutions, from the shapes in its trace."""
    program_flops: float
    """All operations of a call by the cost analysis of the compiled program of one iteration."""
    numpy: list[float]
    """Processor time of one unit in plain NumPy, in the same rounds; empty where there is none."""
    rate: float
    """The machine's operations per second of processor time in a matrix product."""
    goal: str
    """What is aimed at, in words."""

    @property
    def each(self) -> float:
        """The least processor time of a unit."""
        return min(self.processor) / self.units

    @property
    def product_share(self) -> float:
        """The rate of the matrix products alone, as a share of the machine's."""
        return self.product_flops / min(self.processor) / self.rate

    @property
    def program_share(self) -> float:
        """The rate of all operations, as a share of the machine's rate of matrix products."""
        return self.program_flops / min(self.processor) / self.rate

    @property
    def times_numpy(self) -> float:
        """How many times as fast as NumPy."""
        return min(self.numpy) / self.each if self.numpy else float("nan")


@dataclasses.dataclass(frozen=True)
class Peak:
    """The memory of a process of its own that observes a rule on so many instances."""

    instances: int
    peak_bytes: int
    """Most memory the process had resident."""
    before_bytes: int
    """The same after a small set, before the set itself: Python, JAX, compiled programs."""
    set_bytes: int
    """What the instances would take if they were all kept."""


@dataclasses.dataclass(frozen=True)
class Temporary:
    """What compiled rollouts on so many instances need beside their arguments and results."""

    instances: int
    block: int
    """How many instances are iterated side by side."""
    temporary_bytes: int


@dataclasses.dataclass(frozen=True)
class Contest:
    """One solver to one accuracy, on the test instances of a small trained run."""

    problem: str
    preset: str
    accuracy: str
    solver: str
    gradients: float
    """Gradient evaluations of the median instance; infinite if it was not solved."""
    seconds: float
    """Median time on the clock, one instance at a time."""
    missed: int
    instances: int


@dataclasses.dataclass(frozen=True)
class StageTime:
    """How long a stage of a small whole run took, on the clock, compiling included."""

    problem: str
    preset: str
    stage: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Suite:
    """All that one run of the benchmarks has measured, and where."""

    schema: int
    made_with: dict[str, str]
    measured: list[Measured]
    speeds: list[Speed]
    peaks: list[Peak]
    temporaries: list[Temporary]
    contests: list[Contest]
    stages: list[StageTime]
    notes: list[str]
    """What could not be measured, and why."""


def save_suite(suite: Suite, path: Path) -> None:
    """Write a suite as JSON."""
    write_text(path, to_json(suite))


def load_suite(path: Path) -> Suite:
    """Read a suite; what is damaged, or of another schema, is refused."""
    try:
        plain: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    found = plain.get("schema") if isinstance(plain, dict) else None
    if found != SCHEMA:
        raise RunFolderError(
            f"{path} holds no benchmarks of this version: its schema is {found!r}, not {SCHEMA}"
        )
    suite = from_plain(Suite, plain, path.name)
    timed: list[Measured | Speed] = [*suite.measured, *suite.speeds]
    for one in timed:
        numbers = [*one.seconds, *one.processor, *one.anchor]
        same = len(one.seconds) == len(one.processor) == len(one.anchor) > 0
        if not same or not all(number > 0 for number in numbers):
            raise RunFolderError(f"{path} is damaged: the rounds of {one.name!r} make no sense")
    return suite
