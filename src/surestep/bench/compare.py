"""Two versions: what has become slower by more than noise explains.

Times are compared in units of the matrix product that was measured in the same rounds, so that a
machine that is slower today is no slowdown. Noise is what the repeats of both runs show.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Literal

from surestep.bench.records import Measured, Speed, Suite
from surestep.errors import ConfigurationError

TOLERANCE = 0.10
"""A change of less is never flagged, however quiet the machines were."""
WIDTH = 3.0
"""How many standard deviations of noise a change must exceed."""

Verdict = Literal["slower", "faster", "same"]


@dataclasses.dataclass(frozen=True)
class Change:
    """One benchmark in two runs."""

    name: str
    factor: float
    """New by old, of the medians, each in units of its anchor: above 1 is slower."""
    best: float
    """The same of the best rounds."""
    noise: float
    """The standard deviation that the repeats of both runs suggest for the factor."""

    @property
    def limit(self) -> float:
        """The factor beyond which the change is no longer called noise."""
        return 1 + max(TOLERANCE, WIDTH * self.noise)

    @property
    def verdict(self) -> Verdict:
        """Slower or faster only if the typical round and the best round say so."""
        if self.factor > self.limit and self.best > 1 + TOLERANCE:
            return "slower"
        if self.factor < 1 / self.limit and self.best < 1 / (1 + TOLERANCE):
            return "faster"
        return "same"

    def __str__(self) -> str:
        return (
            f"{self.verdict:<7}{self.name}: {self.factor:.2f} times as long "
            f"(best rounds {self.best:.2f}, noise {self.noise:.2f}, limit {self.limit:.2f})"
        )


def compare(old: Suite, new: Suite) -> list[Change]:
    """Every benchmark that both runs have, the slowest first."""
    before, after = _relative(old), _relative(new)
    common = [name for name in after if name in before]
    if not common:
        raise ConfigurationError("the two files have no benchmark in common")
    changes = [_change(name, before[name], after[name]) for name in common]
    return sorted(changes, key=lambda change: -change.factor)


def slower(changes: Sequence[Change]) -> list[Change]:
    """Those that have become slower beyond noise."""
    return [change for change in changes if change.verdict == "slower"]


def differences(old: Suite, new: Suite) -> list[str]:
    """In what the two runs differ beside the code: reasons to doubt a comparison."""
    ignored = ("surestep", "when", "load")
    names = sorted(old.made_with.keys() | new.made_with.keys())
    return [
        f"{name}: {old.made_with.get(name)} then, {new.made_with.get(name)} now"
        for name in names
        if name not in ignored and old.made_with.get(name) != new.made_with.get(name)
    ]


def _relative(suite: Suite) -> dict[str, list[float]]:
    parts: list[Measured | Speed] = [*suite.measured, *suite.speeds]
    return {
        one.name: [m / a for m, a in zip(one.processor, one.anchor, strict=True)] for one in parts
    }


def _change(name: str, old: list[float], new: list[float]) -> Change:
    return Change(
        name,
        statistics.median(new) / statistics.median(old),
        min(new) / min(old),
        (spread(old) ** 2 + spread(new) ** 2) ** 0.5,
    )


def spread(values: Sequence[float]) -> float:
    """The relative standard deviation, from the median distance to the median.

    A single disturbed round does not widen it; a single round tells nothing, and counts as 5 %.
    """
    if len(values) == 1:
        return 0.05
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values) / middle
