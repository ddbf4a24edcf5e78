"""Claims that compare the deployed rule with a classical one, the opponent."""

import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from surestep.certify.certificate import percent, rounded_down, rounded_up
from surestep.certify.claims.base import Basis, BinaryClaim, BoundedClaim, Terms, numbers
from surestep.certify.evidence import Evidence, reached_in
from surestep.certify.targets import FIRST

DECADES = 3.0
"""Advantages are measured in powers of ten and clipped at this many, either way."""

DOUBLINGS = 5.0
"""Savings are measured in powers of two and clipped at this many, either way."""


@dataclasses.dataclass(frozen=True)
class Sooner(BinaryClaim):
    """A target is reached with no more gradient evaluations than the opponent needs."""

    weight: ClassVar[float] = 0.5
    opponent: str
    target: int
    """Which of the plan's targets."""
    kind: Literal["sooner"] = "sooner"

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """1 where the target is not reached, or later than by the opponent."""
        ours, theirs = _needed(terms, evidence, self.opponent, self.target)
        return numbers(~(np.isfinite(ours) & (ours <= theirs)))[None]

    def details(self, basis: Basis) -> dict[str, Any]:
        """On how many instances both need equally many gradient evaluations."""
        ours, theirs = _needed(basis.terms, basis.evidence, self.opponent, self.target)
        mine = ours[basis.deployed_sample]
        return {"ties_on_train_set": int(np.sum(np.isfinite(mine) & (mine == theirs)))}

    def sentence(self, value: float, terms: Terms) -> str:
        """The share of instances where it is sooner."""
        words = terms.targets[self.target].words(terms.above)
        return (
            f"at least {percent(float(rounded_down(1 - value)))} of new instances {words} within "
            f"{terms.horizon} iterations of the deployed rule, after no more gradient evaluations "
            f"than {self.opponent} needs."
        )


@dataclasses.dataclass(frozen=True)
class Saving(BoundedClaim):
    """How many times fewer gradient evaluations than the opponent's a target takes, in doublings.

    Whoever has not reached it within the horizon has saved nothing and lost all that can be lost;
    an opponent that has not reached it in twice the horizon is counted as if it had then.
    """

    weight: ClassVar[float] = 0.5
    larger_is_better: ClassVar[bool] = True
    opponent: str
    target: int
    """Which of the plan's targets."""
    kind: Literal["saving"] = "saving"

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """The saving, clipped and turned around."""
        ours, theirs = _needed(terms, evidence, self.opponent, self.target)
        # Who is there at the start has needed none.
        theirs = np.clip(theirs, 1.0, 2.0 * terms.horizon)
        with np.errstate(divide="ignore"):
            saved = np.log2(theirs / np.maximum(ours, 1.0))
        return (0.5 - 0.5 * np.clip(saved / DOUBLINGS, -1.0, 1.0))[None]

    def number(self, mean: float) -> float:
        """The mean saving."""
        return DOUBLINGS * (1 - 2 * mean)

    def sentence(self, value: float, terms: Terms) -> str:
        """The mean, as a ratio."""
        words = terms.targets[self.target].words(terms.above)
        most = 2**DOUBLINGS
        return (
            f"until new instances {words}, the deployed rule needs in the geometric mean at most "
            f"{rounded_up(2**-value)} times as many gradient evaluations as {self.opponent} "
            f"(ratios beyond {most:g} and 1/{most:g} are counted as these, and what the rule does "
            f"not reach in time as {most:g})."
        )


def _needed(
    terms: Terms, evidence: Evidence, opponent: str, target: int
) -> tuple[Float[np.ndarray, "sample instance"], Float[np.ndarray, " instance"]]:
    """Gradient evaluations until a target is reached for the first time, ours and theirs."""
    ours = reached_in(evidence.reach, FIRST, target)
    theirs = reached_in(evidence.opponent_reach, FIRST, target)
    return ours, theirs[terms.opponents.index(opponent)]


@dataclasses.dataclass(frozen=True)
class Better(BinaryClaim):
    """The loss at the horizon is at most the opponent's."""

    weight: ClassVar[float] = 0.5
    opponent: str
    slack: float = 0.0
    """How far above the opponent's the loss may be."""
    kind: Literal["better"] = "better"

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """1 where the loss is larger."""
        final = evidence.final
        allowed = evidence.opponent_losses[terms.opponents.index(self.opponent)] + self.slack
        return numbers(~(np.isfinite(final) & (final <= allowed)))[None]

    def sentence(self, value: float, terms: Terms) -> str:
        """The probability of being better."""
        than = f"that of {self.opponent} after as many"
        if self.slack:
            than += f" plus {self.slack:.4g}"
        return (
            f"on a new instance the deployed rule's loss after {terms.horizon} iterations is at "
            f"most {than}, with probability at least {rounded_down(1 - value)}."
        )


@dataclasses.dataclass(frozen=True)
class Advantage(BoundedClaim):
    """By how many powers of ten the loss at the horizon is smaller than the opponent's."""

    weight: ClassVar[float] = 0.5
    larger_is_better: ClassVar[bool] = True
    opponent: str
    floor: float = 0.0
    """Losses (above the reference, if there is one) that are smaller count as this."""
    kind: Literal["advantage"] = "advantage"

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """The advantage, clipped and turned around."""
        theirs = evidence.opponent_losses[terms.opponents.index(self.opponent)]
        final, theirs = evidence.above(evidence.final), evidence.above(theirs)
        gained = self._decades(theirs) - self._decades(final)
        # Where nothing is known to count from, the comparison is lost.
        gained = np.where(np.isfinite(evidence.references), gained, -DECADES)
        return (0.5 - 0.5 * np.clip(gained / DECADES, -1.0, 1.0))[None]

    def number(self, mean: float) -> float:
        """The mean advantage."""
        return DECADES * (1 - 2 * mean)

    def sentence(self, value: float, terms: Terms) -> str:
        """The expected advantage."""
        size = rounded_down(value) if value >= 0 else rounded_up(-value)
        word = "smaller" if value >= 0 else "larger"
        above = f", counted from {terms.above}," if terms.above else ""
        least = f" (losses below {self.floor:g} counted as that)" if self.floor else ""
        return (
            f"on a new instance the deployed rule's loss after {terms.horizon} iterations{above} "
            f"is in expectation {'at least' if value >= 0 else 'at most'} {size} powers of ten "
            f"{word} than that of {self.opponent} after as many{least}, advantages and losses "
            f"beyond {DECADES:g} powers of ten counted as {DECADES:g}."
        )

    def _decades(self, losses: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Logarithms that stay finite."""
        return np.log10(np.clip(losses, max(self.floor, 1e-300), 1e300))
