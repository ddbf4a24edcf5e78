"""What the pilot says of instances before they are solved: a predictor, and kinds of instances.

Everything here is decided on the prior set.
"""

import dataclasses
import itertools
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from surestep.bounds.uniform import most_above
from surestep.certify.claims import AnyClaim, Foretold, InStratum
from surestep.certify.claims.base import Terms
from surestep.certify.claims.strata import PREFIX
from surestep.certify.evidence import reached_in
from surestep.certify.pilot import Pilot
from surestep.certify.settings import CertifySettings
from surestep.certify.targets import ITERATIONS
from surestep.certify.traits import AnyTrait, Difficulty, Label

SHARES = (0.5, 0.8, 0.9, 0.95)
"""Shares of instances of a kind for which first hits are certified, if there are enough."""

_FOLDS = 5
_RIDGES = (1e-3, 1e-2, 0.1, 1.0, 10.0)  # beside features of variance 1
_WORTHWHILE = 0.7  # a predictor must leave at most this share of the squared deviations
_SPREAD = 0.1  # the least deviation, in doublings, that is worth predicting
_FEWEST = 30  # instances that a predictor is fitted on
_REACHED = 0.94  # the share of them that must have an outcome
_FORETOLD = 0.9  # the share of instances that predictions are certified for
_PART = 0.01  # about the part of epsilon that pays for one number of one kind


@dataclasses.dataclass(frozen=True)
class Foresight:
    """What is known of instances beforehand, and what could be claimed of it."""

    traits: tuple[AnyTrait, ...]
    pilot: Pilot
    """With these traits in its evidence."""
    claims: tuple[AnyClaim, ...]


def foresee(
    settings: CertifySettings, terms: Terms, pilot: Pilot, headline: int, weight: float
) -> Foresight:
    """Predict outcomes on the pilot's instances, and divide instances into kinds.

    A user's own division is taken as it is; else instances are divided by how hard they are
    predicted to be, into as many kinds as each will get a statement that says something.
    """
    traits: list[AnyTrait] = []
    columns: list[np.ndarray] = []
    if pilot.names:
        traits.append(Label(pilot.names))
        columns.append(pilot.labels.astype(np.float64))
    fitted = _fitted(terms, pilot, headline) if settings.predictions else None
    if fitted is not None:
        traits.append(fitted[0])
        columns.append(fitted[1])
    size = pilot.size
    table = np.stack(columns, axis=1) if columns else np.zeros((size, 0))
    evidence = dataclasses.replace(pilot.evidence, traits=table)
    pilot = dataclasses.replace(pilot, evidence=evidence)
    level = settings.epsilon * weight * _PART
    claims: list[AnyClaim] = []
    if fitted is not None:
        claims.append(_foretold(terms, len(traits) - 1, level))
    if pilot.names:
        claims += _by_label(terms, pilot, headline, level)
    elif fitted is not None:
        claims += _by_difficulty(settings, terms, pilot, fitted[0], headline, level)
    return Foresight(tuple(traits), pilot, tuple(claims))


def _foretold(terms: Terms, trait: int, level: float) -> Foretold:
    shares = tuple(s for s in SHARES if most_above(terms.train_size, s, (level,))[0] >= 0)
    share = max((s for s in shares if s <= _FORETOLD), default=SHARES[0])
    return Foretold("outcome over prediction", trait, shares or (share,), share)


def _by_label(terms: Terms, pilot: Pilot, headline: int, level: float) -> list[AnyClaim]:
    """The user's kinds, but for those of which nothing can be said."""
    claims: list[AnyClaim] = []
    for number, name in enumerate(pilot.names):
        edges = (number - 0.5, number + 0.5)
        shares = _possible(terms, pilot, 0, edges, headline, level)
        if np.any(pilot.labels == number):
            claims.append(
                InStratum(f"{PREFIX}{name}", 0, *edges, f"{name}", headline, shares or SHARES[:1])
            )
    return claims


def _by_difficulty(
    settings: CertifySettings,
    terms: Terms,
    pilot: Pilot,
    difficulty: Difficulty,
    headline: int,
    level: float,
) -> list[AnyClaim]:
    """As many kinds of instances, equally frequent, as each can be said something of."""
    predicted = pilot.evidence.traits[:, 0]
    for number in range(settings.strata, 1, -1):
        inner = np.quantile(predicted, np.arange(1, number) / number)
        # Short numbers: they are printed, and what is printed is what is meant.
        edges = [None, *dict.fromkeys(float(f"{edge:.3g}") for edge in inner), None]
        bounds = list(itertools.pairwise(edges))
        shares = [_possible(terms, pilot, 0, pair, headline, level) for pair in bounds]
        if len(bounds) == number and all(shares):
            names = _NAMES[number] if number in _NAMES else [f"{n + 1}" for n in range(number)]
            return [
                InStratum(
                    f"{PREFIX}{name}",
                    0,
                    *pair,
                    _words(difficulty, terms, pair),
                    headline,
                    possible,
                )
                for name, pair, possible in zip(names, bounds, shares, strict=True)
            ]
    return []


_NAMES = {2: ["easy", "hard"], 3: ["easy", "middling", "hard"]}


def _words(difficulty: Difficulty, terms: Terms, bounds: tuple[float | None, float | None]) -> str:
    low, high = bounds
    if difficulty.outcome == "iterations":
        unit, what = " iterations", "predicted to need"
    else:
        above = f" above {terms.above}" if terms.above else ""
        unit, what = "", f"predicted to end with a loss{above} of"
    if low is None:
        return f"{what} at most {high:g}{unit}"
    if high is None:
        return f"{what} more than {low:g}{unit}"
    return f"{what} more than {low:g} and at most {high:g}{unit}"


def _possible(
    terms: Terms,
    pilot: Pilot,
    trait: int,
    bounds: tuple[float | None, float | None],
    headline: int,
    level: float,
) -> tuple[float, ...]:
    """Shares of a kind's instances for which a first hit will probably be certified."""
    claim = InStratum("", trait, *bounds, "", headline, ())
    inside = claim.inside(pilot.evidence)
    frequency = float(inside.mean())
    # So many train instances or more there will be with some certainty.
    number = terms.train_size * frequency
    number = int(number - 2 * np.sqrt(max(number * (1 - frequency), 0.0)))
    if number < 1 or not inside.any():
        return ()
    seen = np.sort(reached_in(pilot.evidence.reach[0][inside], ITERATIONS, headline))
    found = []
    for share in SHARES:
        above = most_above(number, share, (level,))[0]
        place = int(np.ceil(len(seen) * (1 - max(above, 0) / number))) - 1
        if above >= 0 and np.isfinite(seen[max(place, 0)]):
            found.append(share)
    return tuple(found)


def _fitted(
    terms: Terms, pilot: Pilot, headline: int
) -> tuple[Difficulty, Float[np.ndarray, " instance"]] | None:
    """A predictor, and what it would have predicted of each instance from the others.

    Iterations are predicted if that can be done, else losses at the horizon, else nothing.
    """
    if pilot.features.shape[1] == 0 or pilot.size < _FEWEST:
        return None
    outcomes: list[Literal["iterations", "loss"]] = ["iterations"]
    if terms.above or terms.bounded:
        outcomes.append("loss")
    for outcome in outcomes:
        bare = Difficulty(outcome, headline, _floor(terms, pilot), (), (), 0.0, 0.0, 0.0)
        seen = bare.seen(pilot.evidence)[0]
        logs = _logarithms(seen, terms.horizon, outcome)
        # Of what is missed too often no factor could be certified.
        if np.mean(np.isfinite(seen)) < _REACHED or np.std(logs) < _SPREAD:
            continue
        found = _ridge(pilot.features, logs)
        if found is not None:
            centre, weights, bias, predicted = found
            low, high = (float(_coarse(end)) for end in (logs.min(), logs.max()))
            trait = dataclasses.replace(
                bare, centre=centre, weights=weights, bias=bias, low=low, high=high
            )
            return trait, np.exp2(np.clip(predicted, low, high))
    return None


def _logarithms(
    seen: Float[np.ndarray, " instance"], horizon: int, outcome: str
) -> Float[np.ndarray, " instance"]:
    """Logarithms to base 2; what is never reached counts as twice the horizon."""
    if outcome == "iterations":
        return np.log2(np.clip(seen, 1.0, 2.0 * horizon))
    finite = seen[np.isfinite(seen)]
    largest = float(finite.max()) if finite.size else 1.0
    return np.log2(np.clip(seen, 1e-300, max(largest, 1e-300)))


def _floor(terms: Terms, pilot: Pilot) -> float:
    """The finest accuracy: below it losses are all the same."""
    evidence = pilot.evidence.on(np.flatnonzero(np.isfinite(pilot.evidence.references)))
    levels = [t.levels(evidence.references, evidence.starts, evidence.thresholds)
              for t in terms.targets]  # fmt: skip
    gaps = [float(np.median(level - evidence.references)) for level in levels if level.size]
    positive = [gap for gap in gaps if np.isfinite(gap) and gap > 0]
    return float(f"{min(positive):.3g}") if positive else 1e-300


def _ridge(
    features: Float[np.ndarray, "instance feature"], logs: Float[np.ndarray, " instance"]
) -> tuple[tuple[float, ...], tuple[float, ...], float, Float[np.ndarray, " instance"]] | None:
    """Centre, weights and bias, and predictions from the others; none if these are no good."""
    fold = np.arange(len(logs)) % _FOLDS
    predicted = np.zeros((len(_RIDGES), len(logs)))
    for out in range(_FOLDS):
        rest = fold != out
        for r, ridge in enumerate(_RIDGES):
            centre, weights, bias = _solved(features[rest], logs[rest], ridge)
            predicted[r, ~rest] = bias + (features[~rest] - centre) @ weights
    errors = np.sum((predicted - logs) ** 2, axis=1)
    best = int(np.argmin(errors))
    if not errors[best] <= _WORTHWHILE * np.sum((logs - logs.mean()) ** 2):
        return None
    centre, weights, bias = _solved(features, logs, _RIDGES[best])
    return tuple(centre.tolist()), tuple(weights.tolist()), bias, predicted[best]


def _solved(
    features: np.ndarray, logs: np.ndarray, ridge: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The regression, in the features' own units."""
    centre, scale = features.mean(axis=0), features.std(axis=0)
    # What does not vary tells nothing.
    still = scale <= 1e-9 * np.maximum(np.abs(centre), 1e-300)
    unit = np.where(still, 1.0, scale)
    scaled = np.where(still, 0.0, (features - centre) / unit)
    bias = float(_coarse(logs.mean()))
    gram = scaled.T @ scaled / len(logs) + ridge * np.eye(len(centre))
    weights = np.linalg.solve(gram, scaled.T @ (logs - bias) / len(logs))
    return _coarse(centre / unit) * unit, np.where(still, 0.0, _coarse(weights) / unit), bias


def _coarse(numbers: np.ndarray | np.floating | float) -> Any:
    """To a millionth: last bits of the instances, which are others elsewhere, leave no trace."""
    return np.ldexp(np.round(np.ldexp(numbers, 20)), -20)
