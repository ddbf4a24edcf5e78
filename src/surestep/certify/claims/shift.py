"""What a statement about an event says of other laws than the certified one.

Whatever is certified of the probability of failing bounds it under every law near the certified
one, for all laws at once. No share of epsilon is spent on it.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
from jaxtyping import Float

from surestep.base.lazy import slow_import
from surestep.bounds.kl import binary_kl
from surestep.bounds.shift import (
    entropy_radius,
    entropy_upper,
    ratio_radius,
    ratio_upper,
    variation_radius,
    variation_upper,
)
from surestep.certify.certificate import SHIFT, Statement, percent, rounded_down

VARIATION, ENTROPY, RATIO = "total variation", "relative entropy", "density ratio"
_RADII = {
    VARIATION: (0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 0.5),
    ENTROPY: (1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0),
    RATIO: (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0),
}
_UPPER = {VARIATION: variation_upper, ENTROPY: entropy_upper, RATIO: ratio_upper}
_WITHIN = {VARIATION: variation_radius, ENTROPY: entropy_radius, RATIO: ratio_radius}

_ALLOWED = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Probabilities of failing that people have in mind."""

_INEXACT = 1e-9  # of the sharpest laws of audits


def with_shift(statement: Statement, failure: float) -> Statement:
    """A statement that also tells of other laws; nothing is certain where failing is not ruled out.

    `failure` is the certified probability of failing.
    """
    if not failure < 1:
        return statement
    details = statement.details | {SHIFT: _told(failure)}
    return dataclasses.replace(statement, details=details)


def _told(failure: float) -> dict[str, Any]:
    allowed = _allowed(failure)
    within = {name: float(radius(failure, allowed)) for name, radius in _WITHIN.items()}
    return {
        "failing": failure,
        "curves": {
            name: {"radii": list(radii), "failing": list(_curve(name, failure))}
            for name, radii in _RADII.items()
        },
        "allowed": allowed,
        # Nothing bounds the ratio where failing has probability 0.
        "within": {name: r if np.isfinite(r) else None for name, r in within.items()},
        "sentence": _sentence(failure, allowed, within),
    }


@functools.lru_cache(maxsize=4096)
def _curve(name: str, failure: float) -> tuple[float, ...]:
    return tuple(_UPPER[name](failure, np.array(_RADII[name])).tolist())


def _allowed(failure: float) -> float:
    """The first such number that leaves failing room to double; else half way to certainty."""
    room = 2 * failure * (1 - 1e-9)  # one less 0.95 is a little more than 0.05
    return next((one for one in _ALLOWED if room <= one), 0.5 * (1 + failure))


def _sentence(failure: float, allowed: float, within: dict[str, float]) -> str:
    named = allowed in _ALLOWED
    least = percent(round(1 - allowed, 9) if named else float(rounded_down(1 - allowed)))
    sure = percent(float(rounded_down(1 - failure)))
    ratio = within[RATIO]
    frequent = f"more than {rounded_down(ratio, 3)} times as frequent" if ratio < np.inf else "new"
    anything = percent(float(rounded_down(within[VARIATION], 3)))
    return (
        f"if new instances come from another distribution, {least} instead of {sure} still holds "
        f"as long as at most {anything} of them are anything else at all (total variation), or no "
        f"kind of instance is {frequent} (density ratio), or the relative entropy of the new "
        f"distribution to the certified one is at most {rounded_down(within[ENTROPY], 3)}."
    )


def falsely_moved(
    statement: Statement, failed: Float[np.ndarray, " kind"], chances: Float[np.ndarray, " kind"]
) -> bool:
    """Whether some law within a radius fails more often than a statement says, for audits."""
    told = statement.details.get(SHIFT)
    if told is None:
        return False
    failing = min(float(failed @ chances), 1.0)
    for name, curve in told["curves"].items():
        worst = _worst(name, failing, tuple(curve["radii"]))
        if np.any(worst > np.array(curve["failing"]) + _INEXACT):
            return True
    edges = [(name, radius) for name, radius in told["within"].items() if radius is not None]
    return any(
        _worst(name, failing, (radius,))[0] > told["allowed"] + _INEXACT for name, radius in edges
    )


@functools.lru_cache(maxsize=4096)
def _worst(name: str, failing: float, radii: tuple[float, ...]) -> Float[np.ndarray, " radius"]:
    """How often the sharpest law within each radius fails.

    It makes the kinds that fail more frequent and the others less, each in proportion.
    """
    return np.array([_sharpest(name, failing, radius) for radius in radii])


def _sharpest(name: str, failing: float, radius: float) -> float:
    if name == VARIATION:
        return min(failing + radius, 1.0)
    if name == RATIO:
        return min(failing * radius, 1.0)
    if not 0 < failing < 1 or float(binary_kl(1.0, failing)) <= radius:
        return 1.0 if failing > 0 else 0.0
    if radius <= 0:
        return failing
    brentq = slow_import("scipy.optimize").brentq
    return float(brentq(lambda q: binary_kl(q, failing) - radius, failing, 1.0, xtol=1e-14))
