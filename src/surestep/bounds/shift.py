"""If the world moves: how probable an event is under laws near the one that was certified.

An event has probability at most p under a law P. Of every other law P' it is known that its
probability is at most

- p + r, if the total variation between P' and P is at most r;
- sup {q : kl(q || p) <= r}, if the relative entropy of P' to P is at most r;
- G p, if the density of P' with respect to P is at most G.

These follow from P alone, so they hold for all radii at once and cost no confidence. Everything is
rounded to the safe side: probabilities up, radii down.
"""

import numpy as np
from jaxtyping import Bool, Float

from surestep.base.errors import ConfigurationError
from surestep.bounds.kl import ABSOLUTE, RELATIVE, Numbers, binary_kl


def variation_upper(probability: Numbers | float, radius: Numbers | float) -> Numbers:
    """The largest probability within a total variation, rounded up."""
    probability, radius = _checked(probability, radius, 0.0)
    return np.asarray(np.minimum(np.nextafter(probability + radius, np.inf), 1.0))


def entropy_upper(probability: Numbers | float, radius: Numbers | float) -> Numbers:
    """The largest `q` with `binary_kl(q, probability) <= radius`, rounded up."""
    probability, radius = _checked(probability, radius, 0.0)

    def beyond(q: Numbers | float) -> Bool[np.ndarray, "..."] | np.bool_:
        return binary_kl(q, probability) * (1 - RELATIVE) - ABSOLUTE >= radius

    inside, outside = probability.copy(), np.ones_like(probability)
    # Halving ends between neighbouring floats; near 0 that takes up to 1100 halvings.
    for _ in range(1100):
        middle = 0.5 * (inside + outside)
        if np.all((middle <= inside) | (middle >= outside)):
            break
        far = beyond(middle)
        outside = np.where(far, middle, outside)
        inside = np.where(far, inside, middle)
    # What never happens does not happen under laws that have a density either.
    return np.where(probability == 0, 0.0, outside)


def ratio_upper(probability: Numbers | float, ratio: Numbers | float) -> Numbers:
    """The largest probability of laws whose density is at most `ratio`, rounded up."""
    probability, ratio = _checked(probability, ratio, 1.0)
    return np.asarray(np.minimum(np.nextafter(probability * ratio, np.inf), 1.0))


def variation_radius(probability: Numbers | float, allowed: Numbers | float) -> Numbers:
    """Within which total variation a probability stays at most what is allowed, rounded down."""
    probability, allowed = _risen(probability, allowed)
    return np.asarray(np.maximum(np.nextafter(allowed - probability, -np.inf), 0.0))


def entropy_radius(probability: Numbers | float, allowed: Numbers | float) -> Numbers:
    """Within which relative entropy it stays at most what is allowed, rounded down."""
    probability, allowed = _risen(probability, allowed)
    found = binary_kl(allowed, probability) * (1 - RELATIVE) - ABSOLUTE
    return np.asarray(np.maximum(found, 0.0))


def ratio_radius(probability: Numbers | float, allowed: Numbers | float) -> Numbers:
    """Up to which density it stays at most what is allowed, rounded down."""
    probability, allowed = _risen(probability, allowed)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(probability > 0, allowed / probability, np.inf)
    lower = np.where(np.isinf(ratio), np.inf, np.nextafter(ratio, 0.0))
    return np.asarray(np.maximum(lower, 1.0))


def _checked(
    probability: Numbers | float, radius: Numbers | float, least: float
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    pair = np.asarray(probability, np.float64), np.asarray(radius, np.float64)
    _require_probability(pair[0])
    if not np.all(pair[1] >= least):
        raise ConfigurationError(f"a radius of laws must be at least {least:g}, not {radius}")
    one, other = np.broadcast_arrays(*pair)
    return one, other


def _risen(
    probability: Numbers | float, allowed: Numbers | float
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    pair = np.asarray(probability, np.float64), np.asarray(allowed, np.float64)
    _require_probability(pair[0])
    _require_probability(pair[1])
    if not np.all(pair[0] <= pair[1]):
        raise ConfigurationError(
            f"what is allowed ({allowed}) must be at least the probability itself ({probability})"
        )
    one, other = np.broadcast_arrays(*pair)
    return one, other


def _require_probability(value: Numbers) -> None:
    if not np.all((value >= 0) & (value <= 1)):
        raise ConfigurationError(f"a probability must lie in [0, 1], not {value}")
