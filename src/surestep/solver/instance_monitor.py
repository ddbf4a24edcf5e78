"""A monitor of the instances themselves: do they still come from where the train set came from?

It is fed with a few numbers of every new instance, and bets on where these fall among those of a
stored reference sample. As long as the instances and the sample are exchangeable, the next one
falls between two neighbouring values of the sample with a probability that is known exactly: the
number of gaps there, plus those who have fallen there before, over the number of all (Polya's
urn). This holds although the same sample is used for ever. What would not hold is that ranks in a
fixed sample are independent and uniform: who compares with too small a sample raises false alarms.

Bets are densities on the positions from 0 to 1. A bet is multiplied by the probability that it
gives to the cell of the new instance over the one that the urn gives it, whose mean is 1, so the
wealth of each feature reaches `1 / delta` with probability `delta` at most. Features depend on each
other, and the past of one can tell something about another, so their wealths are not averaged:
each has its own part of `delta`. Equal values are put in order by chance.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surestep.base.errors import ConfigurationError
from surestep.solver.bets import at_first, played

_Numbers = Float[np.ndarray, "..."]

_CUMULATIVE: tuple[Callable[[_Numbers], _Numbers], ...] = (
    lambda p: p**0.3,  # values become smaller, many or much
    lambda p: p**0.6,
    lambda p: 1 - (1 - p) ** 0.3,  # larger
    lambda p: 1 - (1 - p) ** 0.6,
    lambda p: 0.5 * (p**0.4 + 1 - (1 - p) ** 0.4),  # they spread
    lambda p: p * p * (3 - 2 * p),  # they gather in the middle
)
"""The distribution functions of what is bet on."""

LEAST = 20
"""A smaller sample shows too little."""

_AT_ONCE = 5_000  # instances; more would take much memory


@dataclasses.dataclass(frozen=True)
class InstanceMonitor:
    """What has been seen of instances, and how much speaks against where they should come from.

    It must be shown every instance once, in the order they came: leaving some out by what they are
    makes its guarantee void. `Solver.monitor` makes one of the train set's instances.

    **Raises:** `surestep.errors.ConfigurationError` if the numbers are not those of a monitor.

    **Example:**

    ```python
    reference = np.random.default_rng(0).normal(size=(300, 2))
    instances = ss.InstanceMonitor.of(reference, delta=0.005)
    print(instances.shown(np.zeros((5, 2))).alarm)
    ```
    """

    edges: tuple[tuple[float, ...], ...]
    """For every feature, values of the reference sample, in order."""
    ties: tuple[tuple[float, ...], ...]
    """Numbers from 0 to 1 that put equal values in order."""
    gaps: tuple[int, ...]
    """How many gaps between neighbours of the sample lie between two edges."""
    counts: tuple[tuple[int, ...], ...]
    """How many instances have fallen there, for every feature."""
    log_bets: tuple[tuple[float, ...], ...]
    """The logarithms of what is on each bet, before the next instance."""
    highest: tuple[float, ...]
    """The logarithm of the largest wealth so far, for every feature."""
    delta: float = 0.01
    """The probability of a false alarm in all time."""
    seen: int = 0
    """How many instances it was shown."""
    seed: int = 0
    """Decides the order of equal values."""

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ConfigurationError(f"delta must lie strictly between 0 and 1, not {self.delta}")
        features, cells = len(self.edges), len(self.gaps)
        rows = (*self.edges, *self.ties)
        kept = (self.ties, self.counts, self.log_bets, self.highest)
        fits = (
            features >= 1
            and all(len(one) == features for one in kept)
            and all(len(row) == cells - 1 for row in rows)
            and all(len(row) == cells for row in self.counts)
            and all(len(row) == len(_CUMULATIVE) for row in self.log_bets)
            and min(self.gaps) >= 1
            and self.seen >= 0
            and sum(self.gaps) + self.seen < 2**53
            and all(sum(row) == self.seen and min(row) >= 0 for row in self.counts)
        )
        if not fits:
            raise ConfigurationError("edges, gaps, counts and bets are not those of a monitor")
        _require_seed(self.seed)

    @classmethod
    def of(cls, reference: Any, delta: float = 0.01, seed: int = 0) -> "InstanceMonitor":
        """A monitor that has seen nothing yet.

        **Arguments:**

        - `reference`: some numbers of each of a few hundred instances, a row for every instance.
          Which numbers these are must not have been decided by looking at the sample.
        - `delta`: the probability of a false alarm in all time.
        - `seed`: decides the order of equal values.

        **Returns:** an `InstanceMonitor`.

        **Raises:** `surestep.errors.ConfigurationError` if there are too few instances.
        """
        table = _checked(reference)
        size, features = table.shape
        if size < LEAST:
            raise ConfigurationError(f"at least {LEAST} instances are needed, not {size}")
        _require_seed(seed)
        ranks = _ranks(size)
        chance = _chance(seed, 0, size * features).reshape(size, features)
        order = [np.lexsort((chance[:, f], table[:, f]))[ranks - 1] for f in range(features)]
        gaps = np.diff(np.concatenate([[0], ranks, [size + 1]]))
        return cls(
            edges=tuple(tuple(table[rows, f].tolist()) for f, rows in enumerate(order)),
            ties=tuple(tuple(chance[rows, f].tolist()) for f, rows in enumerate(order)),
            gaps=tuple(gaps.tolist()),
            counts=((0,) * len(gaps),) * features,
            log_bets=(at_first(len(_CUMULATIVE)),) * features,
            highest=(0.0,) * features,
            delta=delta,
            seed=seed,
        )

    def shown(self, features: Any) -> "InstanceMonitor":
        """The monitor after some more instances, in the order they came.

        **Arguments:**

        - `features`: the numbers of the reference sample, a row for every instance.

        **Returns:** another `InstanceMonitor`; this one stays as it is.

        **Raises:** `surestep.errors.ConfigurationError` if there are other numbers than in the
        sample.
        """
        table = _checked(features)
        if table.shape[1] != len(self.edges):
            raise ConfigurationError(
                f"{len(self.edges)} numbers of an instance are needed, not {table.shape[1]}"
            )
        found = self
        for first in range(0, len(table), _AT_ONCE):
            found = found._after(table[first : first + _AT_ONCE])
        return found

    def _after(self, table: Float[np.ndarray, "instance feature"]) -> "InstanceMonitor":
        number, features = table.shape
        # The first of the numbers from this seed have put the reference sample in order.
        used = (sum(self.gaps) - 1 + self.seen) * features
        chance = _chance(self.seed, used, number * features).reshape(number, features)
        counts, bets, highest = [], [], []
        for f in range(features):
            cells = _cells(
                table[:, f], chance[:, f], np.array(self.edges[f]), np.array(self.ties[f])
            )
            fallen = np.eye(len(self.gaps), dtype=int)[cells]
            before = np.array(self.gaps) + np.array(self.counts[f]) + np.cumsum(fallen, 0) - fallen
            on_bets, most = played(self.log_bets[f], self.seen, _gains(before, cells))
            counts.append(tuple((np.array(self.counts[f]) + fallen.sum(axis=0)).tolist()))
            bets.append(on_bets)
            highest.append(max(self.highest[f], most))
        return dataclasses.replace(
            self,
            counts=tuple(counts),
            log_bets=tuple(bets),
            highest=tuple(highest),
            seen=self.seen + number,
        )

    @property
    def evidence(self) -> float:
        """The largest wealth so far of a feature, over the number of features."""
        return float(np.exp(min(max(self.highest), 700)) / len(self.highest))

    @property
    def alarm(self) -> bool:
        """Whether the instances have become incredible; once raised, it stays."""
        return bool(max(self.highest) >= np.log(len(self.highest) / self.delta))

    def __str__(self) -> str:
        state = (
            "ALARM: the instances do not come from where the reference sample came from"
            if self.alarm
            else "no reason to doubt where the instances come from"
        )
        feature = int(np.argmax(self.highest)) + 1
        return (
            f"{state} ({self.seen} instances, evidence {self.evidence:.3g} of "
            f"{1 / self.delta:.3g}, most in number {feature} of {len(self.highest)})"
        )


def _checked(features: Any) -> Float[np.ndarray, "instance feature"]:
    table = np.asarray(features, np.float64)
    if table.ndim != 2 or table.shape[1] < 1:
        raise ConfigurationError(
            "numbers of instances are a table with a row for every instance, not an array of shape "
            f"{table.shape}"
        )
    # What is no number is beyond all numbers.
    return np.where(np.isnan(table), np.inf, table)


def _require_seed(seed: int) -> None:
    if not 0 <= seed < 2**64:
        raise ConfigurationError(f"a seed must lie from 0 to 2^64 - 1, not {seed}")


def _ranks(size: int) -> Int[np.ndarray, " edge"]:
    """Which values of an ordered sample are edges: close to each other at the ends."""
    tail = np.unique(np.round(np.geomspace(1, max(size // 10, 2), 10)).astype(int))
    middle = np.linspace(tail[-1], size + 1 - tail[-1], 17).round().astype(int)
    return np.unique(np.concatenate([tail, middle, size + 1 - tail]))


def _cells(
    values: Float[np.ndarray, " instance"],
    chance: Float[np.ndarray, " instance"],
    edges: Float[np.ndarray, " edge"],
    ties: Float[np.ndarray, " edge"],
) -> Int[np.ndarray, " instance"]:
    """How many edges every value is beyond."""
    beyond = edges < values[:, None]
    equal = (edges == values[:, None]) & (ties < chance[:, None])
    return np.sum(beyond | equal, axis=1)


def _gains(
    before: Int[np.ndarray, "instance cell"], cells: Int[np.ndarray, " instance"]
) -> Float[np.ndarray, "bet instance"]:
    """By what every bet is multiplied, from how many there were in the cells before."""
    rows, total = np.arange(len(cells)), before.sum(axis=1)
    upto = np.cumsum(before, axis=1)
    high = upto[rows, cells] / total
    low = (upto[rows, cells] - before[rows, cells]) / total
    chances = before[rows, cells] / total
    given = np.stack([bet(high) - bet(low) for bet in _CUMULATIVE])
    return np.log(np.maximum(given, 1e-300) / chances)  # rounding may leave nothing


def _chance(seed: int, first: int, number: int) -> Float[np.ndarray, " number"]:
    """Numbers of a sequence from 0 to 1 that a seed decides, from any place on."""
    source = np.random.Philox(key=seed)
    # It makes four at a time.
    source.advance(first // 4)
    drawn = source.random_raw(number + first % 4)[first % 4 :]
    return np.asarray(drawn >> np.uint64(11), np.float64) / 2.0**53
