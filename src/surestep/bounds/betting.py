"""Upper bounds for means of values in [0, 1] by betting.

Somebody bets that the mean is below `m`: each value `x` multiplies his capital by
`1 + c (m - x)`, with a size `c` of at most `1 / (1 - m)`, so that it never becomes negative. If
the mean is `m`, his capital is expected to stay what it was, so it ever grows to `1 / level` with a
probability of at most `level`. Every `m` for which it does is rejected.

The more the values agree, the larger bets may be, and the closer the bound lies to their mean.
Bets must be fixed before the values are seen. Several share the capital: the bound then is almost
that of the best one. Everything errs on the safe side in floating point too.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from surestep.base.errors import ConfigurationError
from surestep.bounds.kl import kl_upper

_MOST = 0.999
"""Which part of the largest possible size a bet may have: nobody is ruined by one value."""

_ROUNDING = 1e-12
"""More than the rounding error of a value's logarithm, relative to its size and absolute."""

_AT_ONCE = 2**18
"""How many values are looked at together: as many as stay in a processor's cache."""

_PRECISION, _TURNS = 1e-10, 200
"""How closely a bound is searched, relative to it, and for how long at most."""


_HEDGED = ((0.95, 0.8), (0.35, 0.1))
"""Parts of the size that would be best, and of the capital. Where values are as expected, this adds
2 % to the bound's distance from the mean; where they vary more, it saves up to half of it."""

_COIN = 0.1
"""The part of the capital that is bet as if values were 0 or 1, the worst that they can be."""

Numbers = Float[np.ndarray, " row"]


@dataclasses.dataclass(frozen=True)
class Bet:
    """A bet that is made on every value, and its part of the capital."""

    size: float
    """The capital is multiplied by `1 + size (m - x)`, as long as that cannot be negative."""
    weight: float = 1.0


def checked_bets(bets: Sequence[Bet]) -> Sequence[Bet]:
    """Bets of positive size that share a capital of at most 1; others are refused."""
    for bet in bets:
        if not (0 < bet.size < math.inf and 0 < bet.weight <= 1):
            raise ConfigurationError(
                "a bet needs a positive, finite size and a weight above 0 and of at most 1, not "
                f"{bet.size:g} and {bet.weight:g}"
            )
    if not bets or math.fsum(bet.weight for bet in bets) > 1 + 1e-12:
        raise ConfigurationError("there must be bets, and their weights may add up to 1 at most")
    return bets


def mean_uppers(
    values: Float[np.ndarray, "*rest instance"],
    log_levels: Float[np.ndarray, "..."] | float,
    bets: Sequence[Bet],
) -> Float[np.ndarray, "*rest"]:
    """Upper bounds for the means of independent values in [0, 1], rounded up.

    Each is false with a probability of at most its level, whose logarithm is given.
    """
    values, bets = np.asarray(values, np.float64), checked_bets(bets)
    if values.ndim < 1 or values.shape[-1] < 1:
        raise ConfigurationError("at least one instance is needed, not 0")
    if not np.all((values >= 0) & (values <= 1)):
        raise ConfigurationError("values must lie in [0, 1]")
    if not np.all(np.asarray(log_levels) < 0):
        raise ConfigurationError("a confidence level must lie strictly between 0 and 1")
    *rest, size = values.shape
    rows = values.reshape(-1, size)
    wanted = -np.broadcast_to(np.asarray(log_levels, np.float64), rest).ravel()
    few = max(1, _AT_ONCE // size)
    blocks = [slice(first, first + few) for first in range(0, len(rows), few)]
    found = [_search(_Capital(rows[block], bets), wanted[block]) for block in blocks]
    return np.concatenate(found).reshape(rest) if found else np.ones(rest)


def tuned_bets(
    values: Float[np.ndarray, " instance"], size: int, log_level: float
) -> tuple[Bet, ...]:
    """Bets for `size` values of which those that are given are typical.

    Most of the capital is on what would be best for values like these. The rest is on smaller bets,
    because a few values do not show how much others vary.
    """
    mean = float(np.mean(values))
    upper = float(kl_upper(mean, -log_level / size))
    # Chernoff's own bet, were the values 0 and 1: others pay only where they vary less.
    coin = (upper - mean) / (upper * (1 - upper)) if mean < upper < 1 else 1.0
    like_these = np.asarray(values)[np.arange(size) * len(values) // size]
    most = 1 / (1 - upper) if upper < 1 else coin
    sizes = np.geomspace(0.25 * coin, max(most, coin), 24)
    found = [float(mean_uppers(like_these, log_level, (Bet(size),))) for size in sizes]
    best = float(sizes[int(np.argmin(found))])
    bets = [*((part * best, weight) for part, weight in _HEDGED), (coin, _COIN)]
    # Few digits: last bits, which differ from machine to machine, are no part of a plan.
    return tuple(Bet(float(f"{size:.3g}"), weight) for size, weight in bets)


@dataclasses.dataclass(frozen=True)
class _Capital:
    """The capital that bets make of rows of values."""

    rows: Float[np.ndarray, "row instance"]
    bets: Sequence[Bet]

    def of(self, chosen: Bool[np.ndarray, " row"]) -> "_Capital":
        """That of some of the rows."""
        return self if np.all(chosen) else _Capital(self.rows[chosen], self.bets)

    def logarithm(self, m: Numbers) -> Numbers:
        """The logarithm of what it is where the mean is said to be below `m`, rounded down.

        It rises with m: where a bet is as large as it may be, each of its factors does, too.
        """
        below = m[:, None] - self.rows
        with np.errstate(divide="ignore"):
            most = _MOST / (1 - m)
        total = np.full(len(m), -np.inf)
        for bet in self.bets:
            factors = np.minimum(bet.size, most)[:, None] * below
            factors += 1.0
            one = np.log(factors, out=factors).sum(axis=1)
            np.logaddexp(total, one + math.log(bet.weight), out=total)
        largest = max(bet.size for bet in self.bets)
        return total - _ROUNDING * self.rows.shape[1] * (1 + math.log1p(largest))


def _search(capital: _Capital, wanted: Numbers) -> Numbers:
    """The smallest means that are rejected, by false position; 1 where none is.

    What is returned has been seen to be rejected, so no more than closeness hangs on the search.
    """
    low = capital.rows.mean(axis=1)
    high = np.ones_like(low)
    under, over = capital.logarithm(low) - wanted, capital.logarithm(high) - wanted
    moved = np.zeros(len(low))
    # Where nothing is rejected, there is nothing to search.
    active = over >= 0
    for turn in range(_TURNS):
        active &= high - low > _PRECISION * high
        if not active.any():
            break
        a, b, fa, fb = (one[active] for one in (low, high, under, over))
        # Where false position is slow, halving is not.
        middle = 0.5 * (a + b) if turn % 6 == 5 else _near_root(a, b, fa, fb)
        value = capital.of(active).logarithm(middle) - wanted[active]
        beyond = value >= 0
        # An end that stays twice counts half (Illinois), so that it does not stay for ever.
        now = np.where(beyond, 1.0, -1.0)
        left = np.where(now == moved[active], 0.5, 1.0)
        low[active], under[active] = np.where(beyond, (a, left * fa), (middle, value))
        high[active], over[active] = np.where(beyond, (middle, value), (b, left * fb))
        moved[active] = now
    return high


def _near_root(a: Numbers, b: Numbers, fa: Numbers, fb: Numbers) -> Numbers:
    """Where the line between two points is 0, a little towards the end that is farther away.

    So the root is soon between two points that are as close as wanted.
    """
    root = a - fa * (b - a) / (fb - fa)
    nudge = 0.4 * _PRECISION * b
    return np.clip(np.where(root - a < b - root, root + nudge, root - nudge), a, b)
