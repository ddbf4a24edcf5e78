"""Losses that closeness is counted from, found by a solver that may fail on some instances."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ProblemError
from surestep.problem import Theta, count, instance

UNKNOWN = -np.inf
"""The reference of an instance on which none was found: no loss is close to it, so nothing that is
certified of closeness is said too much."""

Solve = Callable[[Theta], Float[np.ndarray, " instance"]]


def references_by(solve: Solve, thetas: Theta) -> Float[np.ndarray, " instance"]:
    """What a solver finds on stacked instances, and `UNKNOWN` where it fails.

    One instance on which it raises an error must not cost the others theirs: they are then solved
    one by one.
    """
    try:
        found = np.asarray(solve(thetas), np.float64)
    except Exception:  # it may be anybody's code
        found = _one_by_one(solve, thetas)
    return np.where(np.isfinite(found), found, UNKNOWN)


def require_some(
    found: Float[np.ndarray, " instance"], solve: Solve, thetas: Theta
) -> Float[np.ndarray, " instance"]:
    """The references, if there is any; else the solver's own error."""
    if not np.any(np.isfinite(found)):
        solve(instance(thetas, slice(0, 1)))
        raise ProblemError(
            f"references could be found on none of {len(found)} instances: closeness cannot be "
            "counted from them"
        )
    return found


def _one_by_one(solve: Solve, thetas: Theta) -> Float[np.ndarray, " instance"]:
    found = np.full(count(thetas), UNKNOWN)
    for i in range(len(found)):
        try:
            found[i] = np.asarray(solve(instance(thetas, slice(i, i + 1))), np.float64).item()
        except Exception:
            continue
    return found


def completed(
    found: Float[np.ndarray, " instance"],
    start_losses: Callable[[], Float[np.ndarray, " instance"]],
) -> Float[np.ndarray, " instance"]:
    """References; where one is unknown, as far below the start as the others are in the median.

    To work with, never to state anything by.
    """
    known = np.isfinite(found)
    if known.all():
        return found
    starts = start_losses()
    return np.where(known, found, starts - float(np.median((starts - found)[known])))


def minima_to_train_with(
    solve: Solve, thetas: Theta, start_losses: Callable[[], Float[np.ndarray, " instance"]]
) -> Float[np.ndarray, " instance"]:
    """The minima of instances; training may count from anything that comes from the prior set."""
    return completed(require_some(references_by(solve, thetas), solve, thetas), start_losses)
