"""Is a probability as large as claimed? Evidence that may be looked at after every outcome.

Whoever doubts the claim bets against it, at odds that are fair if it is just wrong. A stake is a
share of the largest bet that cannot lead into debt. While the claim is wrong the wealth is a
non-negative supermartingale that begins with 1, whatever is staked, so it ever reaches `1 / level`
with probability `level` at most (Ville's inequality). Wealth that is spread over many stakes once
and for all is one, too, and depends on the counts of outcomes alone.

With fixed stakes the wealth falls as the probability rises that is bet against: so all
probabilities against which it has reached `1 / level` are ruled out at once, a confidence sequence.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, Self

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special

from surestep.base.errors import ConfigurationError
from surestep.bounds.logarithms import log_sum_exp

Verdict = Literal["proved", "refuted", "undecided"]

_LITTLE = 0.25
"""How many events, and others, a guess begins with: less than one of each, because rules that are
certified at 0.999 often fail far more rarely than once in a thousand."""
_NEAREST = 0.02
"""The alternatives nearest to the claim, relative to the smaller of its two probabilities."""
_STAKES = 40
_EVEN = 0.1
"""Which part is spread evenly, so that a guess that is wrong costs little."""
_AT_ONCE = 4096
_FAILURES = 400
"""A forecast looks no further than to so many failures."""

Counts = Int[np.ndarray, "..."] | Float[np.ndarray, "..."] | int
_Decided = Callable[[Counts, Counts], Bool[np.ndarray, "*rest"]]


@dataclasses.dataclass(frozen=True)
class Bets:
    """Which part of the wealth is staked how boldly."""

    stakes: tuple[float, ...]
    """Shares of the largest bet, from above 0 to 1."""
    weights: tuple[float, ...]
    """The parts of the wealth that are staked so; they add up to 1."""

    def __post_init__(self) -> None:
        sound = len(self.stakes) == len(self.weights) > 0
        sound = sound and all(0 < stake <= 1 for stake in self.stakes)
        sound = sound and all(weight >= 0 for weight in self.weights)
        if not sound or sum(self.weights) > 1 + 1e-9:
            raise ConfigurationError(
                "stakes lie in (0, 1], and have weights that are at least 0 and add up to 1"
            )

    @classmethod
    def guided(cls, probability: float, events: float, others: float) -> Self:
        """Bets that events are more probable than this, from what was seen of others before.

        They are spread as a guess of the true probability is, that begins with what was seen. It is
        counted as fewer, where it would leave no room for another truth.
        """
        rare = min(probability, 1 - probability)
        nearest = _NEAREST * rare / (1 - probability)
        ends = np.log(nearest / (1 - nearest)), 6.0
        stakes = special.expit(np.linspace(*ends, _STAKES - 1))
        # Cells around the stakes; the last one, of everything that is staked, ends at 1.
        middles = special.expit(np.linspace(*ends, 2 * _STAKES - 3)[1::2])
        edges = np.concatenate([[0.0], middles, [0.5 * (stakes[-1] + 1.0)], [1.0]])
        seen = max(events + others, 1.0)
        trust = min(1.0, 1.0 / (rare * seen))
        a, b = _LITTLE + trust * events, _LITTLE + trust * others
        below = special.betainc(b, a, (1 - probability) * (1 - edges))
        guess = np.maximum(-np.diff(below), 0.0)
        total = guess.sum()
        guess = guess / total if total > 0 else np.full(_STAKES, 1 / _STAKES)
        weights = (1 - _EVEN) * guess + _EVEN / _STAKES
        return cls((*stakes.tolist(), 1.0), tuple((weights / weights.sum()).tolist()))


def log_wealth(
    bets: Bets, probability: Float[np.ndarray, "..."] | float, events: Counts, others: Counts
) -> Float[np.ndarray, "..."]:
    """The logarithm of the wealth after so many outcomes, rounded down.

    What is bet against: that events have this probability, or a smaller one.
    """
    p, k, m = np.broadcast_arrays(
        *(np.asarray(v, np.float64) for v in (probability, events, others))
    )
    column = (-1, *[1] * p.ndim)
    stakes = np.array(bets.stakes).reshape(column)
    weights = np.array(bets.weights).reshape(column)
    with np.errstate(divide="ignore"):
        won = special.xlog1py(k, stakes * (1 - p) / p)
        lost = special.xlog1py(m, -stakes)
        found = log_sum_exp(np.log(weights) + won + lost)
    # Far above the rounding of the sums, far below anything that decides.
    return np.asarray(found - 1e-9 - 1e-13 * (k + m))


def probability_lower(
    bets: Bets, level: float, events: Counts, others: Counts
) -> Float[np.ndarray, "..."]:
    """A lower bound for the probability of events, at any time; ever false with `level` at most."""
    if not 0 < level < 1:
        raise ConfigurationError(f"a confidence level must lie strictly between 0 and 1: {level}")
    k, m = np.broadcast_arrays(np.asarray(events, np.float64), np.asarray(others, np.float64))
    ruled_out, allowed = np.zeros(k.shape), np.ones(k.shape)
    for _ in range(60):
        middle = 0.5 * (ruled_out + allowed)
        beyond = log_wealth(bets, middle, k, m) >= -np.log(level)
        ruled_out, allowed = np.where(beyond, middle, ruled_out), np.where(beyond, allowed, middle)
    return ruled_out


@dataclasses.dataclass(frozen=True)
class Forecast:
    """How a test is going to come out, if outcomes are like those that were seen before."""

    proved: float
    """In which share of simulated courses the claim is proved."""
    refuted: float
    needed: tuple[float, float, float]
    """After how many outcomes 10, 50 and 90 % of the courses are decided."""
    earliest: float
    """After how many it is proved if there is no failure."""


def require_probability(probability: float) -> None:
    """Refuse what is sure, or no probability: it cannot be proved."""
    if not 0 < probability < 1:
        raise ConfigurationError(
            f"a probability that is to be proved lies strictly between 0 and 1, not {probability}"
        )


@dataclasses.dataclass(frozen=True)
class SequentialTest:
    """A claim that successes have at least a probability; how it is doubted, and how defended."""

    probability: float
    proving: Bets
    """On successes, against a smaller probability."""
    refuting: Bets
    """On failures, against a probability that is as large."""
    levels: tuple[float, float]
    """The probabilities of a wrong proof and of a wrong refutation, at any time."""

    def __post_init__(self) -> None:
        require_probability(self.probability)
        if not all(0 < level < 1 for level in self.levels):
            raise ConfigurationError(f"levels lie strictly between 0 and 1, not at {self.levels}")

    @classmethod
    def guided(
        cls, probability: float, successes: int, failures: int, levels: tuple[float, float]
    ) -> Self:
        """A test whose bets are guided by outcomes that do not belong to it."""
        require_probability(probability)
        proving = Bets.guided(probability, successes, failures)
        refuting = Bets.guided(1 - probability, failures, successes)
        return cls(probability, proving, refuting, levels)

    def proves(self, successes: Counts, failures: Counts) -> Bool[np.ndarray, "..."]:
        """Whether the claim is proved by these counts."""
        wealth = log_wealth(self.proving, self.probability, successes, failures)
        return np.asarray(wealth >= -np.log(self.levels[0]))

    def refutes(self, successes: Counts, failures: Counts) -> Bool[np.ndarray, "..."]:
        """Whether the claim is refuted by these counts."""
        wealth = log_wealth(self.refuting, 1 - self.probability, failures, successes)
        return np.asarray(wealth >= -np.log(self.levels[1]))

    def decide(
        self, outcomes: Bool[np.ndarray, " outcome"], successes: int = 0, failures: int = 0
    ) -> tuple[Verdict, int]:
        """The first decision in a course of outcomes, and after how many it was made.

        So many `successes` and `failures` came before them.
        """
        good_before, before = successes, successes + failures
        for first in range(0, len(outcomes), _AT_ONCE):
            good = good_before + np.cumsum(outcomes[first : first + _AT_ONCE])
            number = before + np.arange(first + 1, first + 1 + len(good))
            proved, refuted = self.proves(good, number - good), self.refutes(good, number - good)
            if np.any(proved | refuted):
                at = int(np.argmax(proved | refuted))
                return ("proved" if proved[at] else "refuted"), before + first + at + 1
            good_before = int(good[-1])
        return "undecided", before + len(outcomes)

    def bounds(self, successes: Counts, failures: Counts) -> tuple[np.ndarray, np.ndarray]:
        """Between which numbers the probability lies, as far as these counts show.

        Both hold at all times at once, with the levels of proof and refutation: the largest lower
        bound and the smallest upper bound that were ever seen may be taken.
        """
        low = probability_lower(self.proving, self.levels[0], successes, failures)
        high = probability_lower(self.refuting, self.levels[1], failures, successes)
        return np.asarray(low), np.asarray(1 - high)

    def forecast(self, successes: int, failures: int, courses: int = 1000) -> Forecast:
        """Simulated courses, if outcomes are like so many that were seen before."""
        random = np.random.default_rng(0)
        rates = random.beta(failures + 0.5, successes + 0.5, courses)
        gaps = random.geometric(np.maximum(rates, 1e-12)[:, None], (courses, _FAILURES + 1))
        times = np.cumsum(np.minimum(gaps, 2**40), axis=1)
        before = np.concatenate([np.zeros((courses, 1), int), times[:, :-1]], axis=1)
        number = np.arange(_FAILURES + 1)
        # With so many failures the claim is proved after this many outcomes.
        proof = number + self._boundary(number, self.proves, least=True)
        proved = (proof > before) & (proof < times)
        # It is refuted as soon as one comes early enough.
        room = self._boundary(number, self.refutes, least=False)
        refuted = (before - number <= room) & (number > 0)
        ends = np.where(proved, proof, np.where(refuted, before, np.inf))
        at = np.argmax(proved | refuted, axis=1)
        rows = np.arange(courses)
        low, middle, high = np.quantile(ends[rows, at], (0.1, 0.5, 0.9), method="inverted_cdf")
        return Forecast(
            proved=float(proved[rows, at].mean()),
            refuted=float((refuted & ~proved)[rows, at].mean()),
            needed=(float(low), float(middle), float(high)),
            earliest=float(proof[0]),
        )

    def _boundary(self, failures: np.ndarray, decided: _Decided, least: bool) -> np.ndarray:
        """The least successes that decide, with these failures, or the most that still do."""
        low, high = np.full(failures.shape, -1.0), np.full(failures.shape, 2.0**40)
        for _ in range(42):
            middle = np.floor(0.5 * (low + high))
            up = decided(np.maximum(middle, 0), failures) != least
            low, high = np.where(up, middle, low), np.where(up, high, middle)
        return high if least else low
