"""Claims that a plan could make, with their numbers, from what the pilot shows."""

import numpy as np
from jaxtyping import Float

from surestep.bounds.uniform import most_above
from surestep.certify.certificate import rounded_up
from surestep.certify.claims import (
    Advantage,
    AnyClaim,
    Better,
    ClippedLoss,
    GoalMissed,
    LossLevels,
    LossWhereReached,
    Saving,
    ShareOfGoal,
    Sooner,
    Within,
)
from surestep.certify.evidence import reached_in
from surestep.certify.pilot import Pilot
from surestep.certify.plan import Plan
from surestep.certify.settings import CertifySettings
from surestep.certify.targets import ITERATIONS

QUANTILES = (0.5, 0.8, 0.9, 0.95)
"""Shares of new instances for which a loss is certified at every iteration of the plan."""

LOSS_ITSELF = "loss itself, clipped"
"""Of use where the minima are what a user pays, and where they do not differ too much."""

_ITERATIONS_UNTIL = "iterations until"
_PAIR = 0.02  # about the part of epsilon that a pair of target and share has


def iterations_until(
    settings: CertifySettings, pilot: Pilot, terms: Plan, weight: float
) -> tuple[Within, bool]:
    """The claim about iterations, of what will probably be certified; and whether anything will.

    Its headline is the hardest target that is reached by as large a share as can be certified.
    """
    level = settings.epsilon * weight * _PAIR
    every = tuple(range(len(terms.targets)))
    seen = pilot.forecast(terms.train_size).reach[0]
    ranked = np.sort([reached_in(seen, ITERATIONS, t) for t in every], axis=1)
    possible: dict[float, dict[int, float]] = {}
    for share in QUANTILES:
        above = most_above(terms.train_size, share, (level,))[0]
        needed = ranked[:, terms.train_size - 1 - max(above, 0)]
        possible[share] = {t: needed[t] for t in every if above >= 0 and np.isfinite(needed[t])}
    shares = tuple(share for share in QUANTILES if possible[share])
    if not shares:
        easiest = max(every, key=lambda t: int(np.isfinite(ranked[t]).sum()))
        return Within(_ITERATIONS_UNTIL, every, QUANTILES, easiest, QUANTILES[0]), False
    targets = tuple(possible[shares[0]])
    best = possible[shares[-1]]
    headline = max(best, key=lambda t: (best[t], t))
    return Within(_ITERATIONS_UNTIL, targets, shares, headline, shares[-1]), True


def other_claims(
    settings: CertifySettings,
    terms: Plan,
    pilot: Pilot,
    headline: int,
    goal_second_moment: float | None,
) -> list[AnyClaim]:
    """All else that could be claimed, the most important first."""
    close = terms.targets[headline].kind != "goal"
    evidence = pilot.evidence
    claims: list[AnyClaim] = [
        GoalMissed("missing the goal"),
        _levels(settings, terms, pilot),
    ]
    if close:
        at = _level_iterations(settings, terms.horizon, terms.iterations)
        claims.append(LossLevels("share left", at, (), QUANTILES, counted="left"))
    if close or terms.bounded:
        ends = evidence.above(evidence.final)[0]
        claims.append(ClippedLoss("loss, clipped", _clip(ends)))
    if terms.above and terms.bounded:
        claims.append(ClippedLoss(LOSS_ITSELF, _clip(evidence.final[0]), counted="loss"))
    if terms.bounded:
        claims.append(ShareOfGoal("share of the goal"))
        if goal_second_moment is not None:
            claims.append(LossWhereReached("loss where the goal is reached", goal_second_moment))
    for name in terms.opponents:
        claims += [
            Sooner(f"sooner than {name}", name, headline),
            Saving(f"saving over {name}", name, headline),
        ]
        if close or terms.bounded:
            floor = _floor(terms, pilot)
            claims.append(Advantage(f"advantage over {name}", name, floor))
        else:
            # Two who have both arrived differ by rounding, which is nobody's merit.
            gained = float(np.median(evidence.starts - evidence.final[0]))
            slack = _short(1e-6 * gained) if np.isfinite(gained) and gained > 0 else 0.0
            claims.append(Better(f"better than {name}", name, slack))
    return claims


def _levels(settings: CertifySettings, terms: Plan, pilot: Pilot) -> LossLevels:
    """Losses over the iterations, counted from the references where there are some."""
    counted = "above" if terms.above else "loss"
    evidence = pilot.evidence
    starts, ends = evidence.starts, evidence.final[0]
    if terms.above:
        starts, ends = evidence.above(starts), evidence.above(ends)
    tolerances = (
        _tolerances(settings, ends, starts)
        if terms.above or terms.bounded
        else _even_tolerances(settings, ends, starts)
    )
    return LossLevels(
        "losses over iterations",
        iterations=_level_iterations(settings, terms.horizon, terms.iterations),
        tolerances=tolerances,
        quantiles=QUANTILES,
        counted=counted,
    )


def _clip(losses: Float[np.ndarray, " instance"]) -> float:
    """Where losses are clipped, for the time being: above all that the pilot has shown."""
    finite = losses[np.isfinite(losses)]
    return _short(_positive(finite.max() if finite.size else 1.0))


def _floor(terms: Plan, pilot: Pilot) -> float:
    """Below which nobody counts a loss as smaller: the finest accuracy, if there are references."""
    if not terms.above:
        return 0.0
    evidence = pilot.evidence.on(np.flatnonzero(np.isfinite(pilot.evidence.references)))
    levels = [
        float(np.median(t.levels(evidence.references, evidence.starts, evidence.thresholds)
                        - evidence.references))
        for t in terms.targets
    ]  # fmt: skip
    return _short(_positive(min(levels)))


def _level_iterations(
    settings: CertifySettings, horizon: int, kept: tuple[int, ...]
) -> tuple[int, ...]:
    """The iterations at which losses are certified, evenly spaced, the horizon among them."""
    number = settings.level_iterations
    wanted = [round((i + 1) * horizon / number) for i in range(number)]
    return tuple(sorted({min(kept, key=lambda k, w=w: abs(k - w)) for w in wanted} - {0}))


def _tolerances(
    settings: CertifySettings,
    ends: Float[np.ndarray, " instance"],
    starts: Float[np.ndarray, " instance"],
) -> tuple[float, ...]:
    """Losses in geometric progression, from what the start is down to what may be reached."""
    positive = ends[np.isfinite(ends) & (ends > 0)]
    high = _positive(np.median(starts))
    low = float(np.quantile(positive, 0.05)) if positive.size else high
    low = min(max(low, 1e-30), high)
    return tuple(float(t) for t in np.geomspace(high, low, settings.levels))


def _even_tolerances(
    settings: CertifySettings,
    ends: Float[np.ndarray, " instance"],
    starts: Float[np.ndarray, " instance"],
) -> tuple[float, ...]:
    """Losses of any sign, evenly spaced."""
    ended = ends[np.isfinite(ends)]
    high = float(np.median(starts))
    low = min(high, float(np.quantile(ended, 0.05))) if ended.size else high
    return tuple(np.unique(np.linspace(high, low, settings.levels))[::-1].tolist())


def _positive(value: float) -> float:
    """Where a scale is needed and the prior set has none to offer, 1 serves."""
    return float(value) if np.isfinite(value) and value > 0 else 1.0


def _short(value: float) -> float:
    """A number that is printed in full with three digits, a little above another."""
    return float(rounded_up(value, 3))
