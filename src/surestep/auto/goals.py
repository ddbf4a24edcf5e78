"""Goals that a survey suggests: hard enough to say something, and possible on every instance."""

import numpy as np

from surestep.auto.survey import Survey
from surestep.base.errors import ConfigurationError
from surestep.problem import Goal, Problem

_LEFT_OUT = 0.02

_SOLVED = (
    "on some instance the start is a solution already (its loss cannot be lowered): choose another "
    "x0, or a goal of your own (--goal.scale, --goal.exponent)"
)


def goal_for(problem: Problem, found: Survey) -> Goal:
    """A goal that every surveyed minimum meets."""
    if not problem.nonnegative:
        return decrease_goal(found)
    return Goal(scale=float(f"{goal_scale(found):.3g}"), exponent=1.0)


def decrease_goal(found: Survey, share: float = 0.01) -> Goal:
    """A decrease from the start that is possible on nearly every surveyed instance.

    It asks for all but `share` of what there is to gain, on the instance where that is hardest
    (but for a few, whose start may be a solution),
    and takes the power of the gradient's norm with which it asks for most on the others.
    """
    gaps = found.starts - found.minima
    best, most = Goal(0.0, 0.0, "decrease"), 0.0
    for exponent in (0.0, 1.0, 2.0):
        with np.errstate(divide="ignore", invalid="ignore"):
            allowed = (1 - share) * gaps / found.slopes**exponent
        scale = float(f"{_least(np.nan_to_num(allowed)) / 1.02:.3g}")
        with np.errstate(divide="ignore", invalid="ignore"):
            asked = float(np.median(scale * found.slopes**exponent / gaps))
        if asked > most:
            best, most = Goal(scale, exponent, "decrease"), asked
    if not best.scale > 0:
        raise ConfigurationError(_SOLVED)
    return best


def goal_scale(found: Survey, share: float = 0.01) -> float:
    """A goal, as a share of the start's loss, that nearly every surveyed minimum meets.

    It asks for all but `share` of what there is to gain, on the instance where that is hardest, but
    for a few, whose start may be a solution.
    """
    starts = np.where(found.starts > 0, found.starts, np.inf)
    wanted = (found.minima + share * (found.starts - found.minima)) / starts
    scale = -1.02 * _least(-wanted)
    if not scale < 1:
        raise ConfigurationError(_SOLVED)
    return scale


def _least(values: np.ndarray) -> float:
    """The least value, but for two of a hundred."""
    return float(np.quantile(values, _LEFT_OUT, method="inverted_cdf"))
