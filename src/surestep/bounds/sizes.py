"""How many instances a certificate needs, and what so many can certify at best."""

import numpy as np

from surestep.base.errors import ConfigurationError
from surestep.bounds.kl import binomial_upper


def best_failure(size: int, epsilon: float, weight: float, observed: float = 0.0) -> float:
    """The smallest failure probability that `size` instances can certify.

    `weight` is the prior weight of the sample that is deployed, `observed` the share of instances
    on which it is expected to fail; with 0 this is what can be had at best.
    """
    if not 0 < weight <= 1:
        raise ConfigurationError(f"a prior weight must lie in (0, 1], not {weight}")
    if not 0 <= observed < 1:
        raise ConfigurationError(f"an observed failure rate must lie in [0, 1), not {observed}")
    failures = int(np.ceil(observed * size))
    return float(binomial_upper(failures, size, epsilon * weight))


def needed_size(
    failure: float, epsilon: float, weight: float, observed: float = 0.0, limit: int = 10**8
) -> int:
    """A number of instances from which on `failure` can always be certified.

    Without failures it is the smallest; with an observed rate it reckons with one failure more
    than the rate gives, so that rounding to whole failures cannot spoil a larger set.
    """
    if not observed < failure < 1:
        raise ConfigurationError(
            f"a failure probability of {failure} cannot be certified: it must lie above the "
            f"observed rate ({observed}) and below 1"
        )
    low, high = 0, 1

    def enough(size: int) -> bool:
        count = min(observed * size + 1, size) if observed else 0.0
        return float(binomial_upper(np.array(count), size, epsilon * weight)) <= failure

    while not enough(high):
        low, high = high, 2 * high
        if high > limit:
            raise ConfigurationError(f"more than {limit} instances would be needed")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
