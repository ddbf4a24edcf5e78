"""Claims: what is going to be certified, fixed before a train loss exists.

A claim turns the train set's evidence into values in [0, 1], one for every sample and instance,
and names its share of epsilon and the form of its bound. All claims of a run make a `Plan`, which
is written down and hashed before the train set is opened.
"""

import dataclasses
import functools
import hashlib
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from surestep.base.errors import ConfigurationError
from surestep.bounds.budget import Ledger, Share
from surestep.bounds.uniform import Form
from surestep.problem.datasets import fingerprint
from surestep.problem.goal import reached
from surestep.storage.records import to_json

Kind = Literal[
    "goal",
    "ratio",
    "clipped",
    "levels",
    "sublevel",
    "faster",
    "advantage",
    "statistic",
    "sooner",
    "better",
]

BINARY: tuple[Kind, ...] = ("goal", "levels", "faster", "sooner", "better")
BOUNDED: tuple[Kind, ...] = ("ratio", "clipped", "sublevel", "advantage")
"""Claims about the size of losses, which hold only where losses are never negative."""
EARLIER = "earlier certificates"
"""The ledger's name for what was spent on the same train instances before."""
DECADES = 3.0
"""Advantages are measured in powers of ten and clipped at this many, either way."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """One thing to certify. Which fields matter depends on the kind."""

    name: str
    kind: Kind
    form: Form
    constant: float = 0.0
    """`clipped`: where losses are clipped. `sublevel`: the declared second moment of the goal.
    `better`: how far above the opponent's a loss may be."""
    iterations: tuple[int, ...] = ()
    """`levels`: after how many iterations."""
    tolerances: tuple[float, ...] = ()
    """`levels`: below which losses. `faster`: the one loss to reach."""
    quantiles: tuple[float, ...] = ()
    """`levels`: for which shares of new instances a loss is certified, whatever it turns out."""
    opponent: str = ""
    """`faster`, `advantage`, `sooner` and `better`: against whom. `statistic`: which."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """All claims of a run, their shares of epsilon, and the prior they are paid from."""

    epsilon: float
    shares: tuple[Share, ...]
    claims: tuple[Claim, ...]
    horizon: int
    iterations: tuple[int, ...]
    """After how many iterations train losses are kept."""
    train_size: int
    log_prior: tuple[float, ...]
    """Normalised log-weights of the prior that the certificates bet with."""
    lambdas: tuple[float, ...]
    """The lambdas of the paper's bound."""
    opponents: tuple[str, ...]
    statistics: tuple[str, ...] = ()
    pool: str = ""
    """The stock of data that instances are made from, if there is one."""

    @functools.cached_property
    def ledger(self) -> Ledger:
        """The budget; made anew, so that shares that do not add up are found."""
        ledger = Ledger(self.epsilon)
        for share in self.shares:
            ledger = ledger.spend(share.name, share.epsilon)
        return ledger

    @property
    def hit_tolerances(self) -> tuple[float, ...]:
        """The losses whose first hit must be observed."""
        wanted = {t for claim in self.claims if claim.kind == "faster" for t in claim.tolerances}
        return tuple(sorted(wanted, reverse=True))

    @property
    def hits_goal(self) -> bool:
        """Whether the first hit of every instance's goal must be observed; it is the last one."""
        return any(claim.kind == "sooner" for claim in self.claims)

    @property
    def hits(self) -> int:
        """How many first hits are observed."""
        return len(self.hit_tolerances) + self.hits_goal

    @property
    def bounded(self) -> bool:
        """Whether it was made for losses that are never negative."""
        return any(claim.kind in BOUNDED for claim in self.claims)

    @functools.cached_property
    def sha256(self) -> str:
        """The plan's hash."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What was observed on the train set, by sample, and what opponents did there."""

    losses: Float[np.ndarray, "sample instance iteration"]
    thresholds: Float[np.ndarray, " instance"]
    hits: Float[np.ndarray, "sample instance tolerance"]
    """Gradient evaluations until a loss was first reached; infinity if it never was."""
    opponent_losses: Float[np.ndarray, "opponent instance"]
    """Losses after the horizon's iterations."""
    opponent_hits: Float[np.ndarray, "opponent instance tolerance"]
    statistics: Float[np.ndarray, "sample instance statistic"]

    @property
    def sha256(self) -> str:
        """A hash of every bit that was observed."""
        return fingerprint(vars(self))

    def of(self, samples: slice) -> "Evidence":
        """The evidence on some of the samples."""
        ours = {name: getattr(self, name)[samples] for name in ("losses", "hits", "statistics")}
        return dataclasses.replace(self, **ours)


def values(
    claim: Claim, plan: Plan, evidence: Evidence
) -> Float[np.ndarray, "statistic sample instance"]:
    """A claim's values in [0, 1]: small is good. `levels` has one statistic a pair, others one."""
    final = evidence.losses[:, :, -1]
    threshold = evidence.thresholds
    if claim.kind == "goal":
        return _numbers(~reached(final, threshold))[None]
    if claim.kind == "ratio":
        usable = (threshold > 0) & np.isfinite(threshold)
        shares = np.minimum(final, threshold) / np.where(usable, threshold, 1.0)
        # A threshold of 0 is reached by a loss of 0 alone; one that is no number never is.
        rest = _numbers((final > 0) | ~np.isfinite(threshold))
        return np.where(usable, shares, rest)[None]
    if claim.kind == "clipped":
        return (np.minimum(final, claim.constant) / claim.constant)[None]
    if claim.kind == "levels":
        at = [plan.iterations.index(iteration) for iteration in claim.iterations]
        shown = np.moveaxis(evidence.losses[:, :, at], 2, 0)
        above = shown[:, None] > np.asarray(claim.tolerances)[:, None, None]
        return _numbers(above.reshape(-1, *final.shape))
    if claim.kind in ("faster", "advantage", "sooner", "better"):
        return _against(claim, plan, evidence)[None]
    if claim.kind == "statistic":
        return evidence.statistics[:, :, plan.statistics.index(claim.opponent)][None]
    raise ConfigurationError(f"the claim {claim.name!r} is not about a mean")


def _against(claim: Claim, plan: Plan, evidence: Evidence) -> Float[np.ndarray, "sample instance"]:
    opponent = plan.opponents.index(claim.opponent)
    if claim.kind in ("faster", "sooner"):
        column = _column(claim, plan)
        ours = evidence.hits[:, :, column]
        theirs = evidence.opponent_hits[opponent, :, column]
        return _numbers(~(np.isfinite(ours) & (ours <= theirs)))
    if claim.kind == "better":
        final = evidence.losses[:, :, -1]
        allowed = evidence.opponent_losses[opponent] + claim.constant
        return _numbers(~(np.isfinite(final) & (final <= allowed)))
    gained = _decades(evidence.opponent_losses[opponent]) - _decades(evidence.losses[:, :, -1])
    return 0.5 - 0.5 * np.clip(gained / DECADES, -1.0, 1.0)


def _column(claim: Claim, plan: Plan) -> int:
    """Where the first hits that a race is about are found."""
    return (
        plan.hits - 1 if claim.kind == "sooner" else plan.hit_tolerances.index(claim.tolerances[0])
    )


def ties(claim: Claim, plan: Plan, evidence: Evidence, sample: int) -> int:
    """On how many instances both reached the loss with equally many gradient evaluations."""
    column = _column(claim, plan)
    ours = evidence.hits[sample, :, column]
    theirs = evidence.opponent_hits[plan.opponents.index(claim.opponent), :, column]
    return int(np.sum(np.isfinite(ours) & (ours == theirs)))


def _decades(losses: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Logarithms that stay finite: what is smaller than 1e-300 or larger than 1e300 is as good."""
    return np.log10(np.clip(losses, 1e-300, 1e300))


def _numbers(good: Bool[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return good.astype(np.float64)
