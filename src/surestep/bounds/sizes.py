"""How many instances a certificate needs, and what so many can certify.

A failure probability is certified if so few instances fail that fewer still would be improbable
were it larger. How probable that is depends on the true failure probability: the power of a size.
Both are sums of binomial probabilities, and computed as such.

Order statistics need the same numbers. That at least a share of new instances are as good as the
k-th of N train instances is certified if few enough lie beyond; and the k-th is as good as a
quantile of all instances if no more than that lie beyond the quantile. So `needed_size` with
`failure = 1 - share` and `observed = 1 - quantile` speaks of them too.
"""

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special

from surestep.base.errors import ConfigurationError
from surestep.bounds.kl import binomial_upper
from surestep.bounds.uniform import most_above

_FIRST = 64
"""Of how many failures the sizes are looked at together, at first."""


def best_failure(size: int, epsilon: float, weight: float, observed: float = 0.0) -> float:
    """The smallest failure probability that `size` instances can certify.

    `weight` is the prior weight of the sample that is deployed, `observed` the share of instances
    on which it fails; with 0 this is what can be had at best.
    """
    level = _level(epsilon, weight)
    _require_rate(observed)
    return float(binomial_upper(int(np.ceil(observed * size)), size, level))


def likely_failure(
    size: int, epsilon: float, weight: float, observed: float = 0.0, power: float = 0.9
) -> float:
    """What `size` instances certify with at least this power, if so many fail in truth."""
    level = _level(epsilon, weight)
    _require_rate(observed)
    counts = np.arange(size + 1)
    failures = int(np.argmax(_at_most(counts, np.full(size + 1, size), observed) >= power))
    return float(binomial_upper(failures, size, level))


def power_of(
    size: int, failure: float, epsilon: float, weight: float, observed: float = 0.0
) -> float:
    """The probability that `size` instances certify `failure`, if `observed` is the true rate."""
    level = _level(epsilon, weight)
    _require_rate(observed)
    allowed = most_above(size, 1 - failure, (level,))[0]
    return float(_at_most(np.array([allowed]), np.array([size]), observed)[0])


def needed_size(
    failure: float,
    epsilon: float,
    weight: float,
    observed: float = 0.0,
    power: float = 0.9,
    limit: int = 10**7,
) -> int:
    """The smallest size that certifies `failure` with at least this power, as all larger ones do.

    The power falls with the size until one failure more is allowed, and rises there; so the sizes
    before these steps decide. Without failures the power is 1, and this is the smallest size.
    """
    level = _level(epsilon, weight)
    if not 0 <= observed < failure < 1:
        raise ConfigurationError(
            f"a failure probability of {failure} cannot be certified: it must lie above the "
            f"observed rate ({observed}) and below 1"
        )
    if not 0 < power < 1:
        raise ConfigurationError(f"a power must lie strictly between 0 and 1, not {power}")
    first, number, needed = 0, _FIRST, 0
    while True:
        failures = np.arange(first, first + number)
        # From each of these sizes on so many failures are allowed, before the next one.
        sizes = _first_sizes(np.arange(first, first + number + 1), failure, level, limit)
        good = _at_most(failures, sizes[1:] - 1, observed) >= power
        if not good.all():
            last = int(np.flatnonzero(~good)[-1])
            needed = int(sizes[last + 1])
        elif first:
            return needed
        else:
            needed = int(sizes[0])
            if observed == 0:
                return needed
        if sizes[-1] > limit:
            raise ConfigurationError(f"more than {limit} instances would be needed")
        first, number = first + number, first + number


def _first_sizes(
    failures: Int[np.ndarray, " count"], failure: float, level: float, limit: int
) -> Int[np.ndarray, " count"]:
    """The smallest sizes at which so many failures still certify the failure probability."""

    def certified(sizes: Int[np.ndarray, " count"]) -> Bool[np.ndarray, " count"]:
        # As `most_above` counts them, with the same care for rounding.
        return _at_most(failures, sizes, failure) * (1 + 1e-9) <= level

    low = failures.copy()
    high = 2 * (failures + 1)
    while not np.all(certified(high) | (high > 2 * limit)):
        high = np.where(certified(high), high, 2 * high)
    if not certified(high)[0]:
        raise ConfigurationError(f"more than {limit} instances would be needed")
    while np.any(high - low > 1):
        middle = (low + high) // 2
        good = certified(middle)
        low, high = np.where(good, low, middle), np.where(good, middle, high)
    return high


def _at_most(
    failures: Int[np.ndarray, " count"], sizes: Int[np.ndarray, " count"], rate: float
) -> Float[np.ndarray, " count"]:
    """The probability of so many failures or fewer."""
    rest = np.maximum(sizes - failures, 0.5)
    found = special.betaincc(np.maximum(failures, 0) + 1.0, rest, rate)
    return np.where(failures < 0, 0.0, np.where(failures >= sizes, 1.0, found))


def _level(epsilon: float, weight: float) -> float:
    """What the sample that is deployed may spend."""
    if not 0 < weight <= 1:
        raise ConfigurationError(f"a prior weight must lie in (0, 1], not {weight}")
    return epsilon * weight


def _require_rate(observed: float) -> None:
    if not 0 <= observed < 1:
        raise ConfigurationError(f"an observed failure rate must lie in [0, 1), not {observed}")
