"""Two versions: what has become slower by more than noise explains.

Times are compared in units of the matrix product that was measured in the same rounds, so that a
machine that is slower today is no slowdown. Disturbances only ever lengthen: the best rounds are
compared, and noise is how far the typical round lies above the best one, in both runs, of the
benchmark and of its matrix product.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

from benchmarks.records import Measured, Speed, Suite
from surestep.base.errors import ConfigurationError

TOLERANCE = 0.10
"""A change of less is never flagged, however quiet the machines were."""
WIDTH = 2.0
"""How many times the noise a change must exceed. In simulations with lognormal noise and a tenth of
the rounds half as long again, five rounds then flag one in 10 000 of the benchmarks that have not
changed if the noise is 3 %, one in 700 if it is 10 %, and 97 % of those that take half as long
again if it is 3 %."""

Verdict = Literal["slower", "faster", "same"]
_Summary = Callable[[Sequence[float]], float]


@dataclasses.dataclass(frozen=True)
class Change:
    """One benchmark in two runs."""

    name: str
    factor: float
    """New by old, of the best rounds, each in units of its anchor: above 1 is slower."""
    typical: float
    """The same of the medians."""
    noise: float
    """How far typical rounds lie above the best ones, as a share."""

    @property
    def limit(self) -> float:
        """The factor beyond which the change is no longer called noise."""
        return 1 + max(TOLERANCE, WIDTH * self.noise)

    @property
    def verdict(self) -> Verdict:
        """Slower or faster only if the best rounds and the typical ones say so."""
        if self.factor > self.limit and self.typical > 1 + TOLERANCE:
            return "slower"
        if self.factor < 1 / self.limit and self.typical < 1 / (1 + TOLERANCE):
            return "faster"
        return "same"

    def __str__(self) -> str:
        return (
            f"{self.verdict:<7}{self.name}: {self.factor:.2f} times as long "
            f"(typical rounds {self.typical:.2f}, noise {self.noise:.2f}, limit {self.limit:.2f})"
        )


def compare(old: Suite, new: Suite) -> list[Change]:
    """Every benchmark that both runs have, the slowest first."""
    before, after = _named(old), _named(new)
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


def _named(suite: Suite) -> dict[str, Measured | Speed]:
    parts: list[Measured | Speed] = [*suite.measured, *suite.speeds]
    return {one.name: one for one in parts}


def _change(name: str, old: Measured | Speed, new: Measured | Speed) -> Change:
    def relative(one: Measured | Speed, of: _Summary) -> float:
        return of(one.processor) / of(one.anchor)

    series = (old.processor, old.anchor, new.processor, new.anchor)
    return Change(
        name,
        relative(new, min) / relative(old, min),
        relative(new, statistics.median) / relative(old, statistics.median),
        math.hypot(*(statistics.median(one) / min(one) - 1 for one in series)),
    )
