"""Claims about the loss at the horizon, and about a user's own statistic."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float

from surestep.certify.certificate import rounded_down, rounded_up
from surestep.certify.claims.base import BinaryClaim, BoundedClaim, Terms, numbers
from surestep.certify.evidence import Evidence
from surestep.problem import reached


@dataclasses.dataclass(frozen=True)
class GoalMissed(BinaryClaim):
    """How often the goal is missed."""

    kind: Literal["goal"] = "goal"

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """1 where the goal is missed."""
        del terms
        return numbers(~reached(evidence.final, evidence.thresholds))[None]

    def sentence(self, value: float, terms: Terms) -> str:
        """The success probability."""
        return (
            f"on a new instance the deployed rule reaches the goal within {terms.horizon} "
            f"iterations with probability at least {rounded_down(1 - value)}."
        )


@dataclasses.dataclass(frozen=True)
class ShareOfGoal(BoundedClaim):
    """The loss as a share of the goal, at most 1."""

    needs_bound: ClassVar[bool] = True
    kind: Literal["ratio"] = "ratio"

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """The loss over the goal."""
        del terms
        final, threshold = evidence.final, evidence.thresholds
        usable = (threshold > 0) & np.isfinite(threshold)
        shares = np.minimum(final, threshold) / np.where(usable, threshold, 1.0)
        # A threshold of 0 is reached by a loss of 0 alone; one that is no number never is.
        rest = numbers((final > 0) | ~np.isfinite(threshold))
        return np.where(usable, shares, rest)[None]

    def sentence(self, value: float, terms: Terms) -> str:
        """The expected share."""
        return (
            f"on a new instance the deployed rule's loss after {terms.horizon} iterations, as a "
            f"share of the goal and counted as 1 beyond it, is at most {rounded_up(value)} in "
            "expectation."
        )


@dataclasses.dataclass(frozen=True)
class ClippedLoss(BoundedClaim):
    """The expected loss, counted as a constant where it is larger."""

    weight: ClassVar[float] = 2.0
    largest: float
    """Where losses are clipped."""
    counted: Literal["above", "loss"] = "above"
    """From the reference, if there is one; or the loss itself."""
    kind: Literal["clipped"] = "clipped"

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """The clipped loss over the constant."""
        del terms
        return (np.minimum(self.measured(evidence), self.largest) / self.largest)[None]

    def measured(self, evidence: Evidence) -> Float[np.ndarray, "sample instance"]:
        """What is clipped."""
        return evidence.above(evidence.final) if self.counted == "above" else evidence.final

    def number(self, mean: float) -> float:
        """The mean loss."""
        return mean * self.largest

    def sentence(self, value: float, terms: Terms) -> str:
        """The expected loss."""
        above = f" above {terms.above}" if terms.above and self.counted == "above" else ""
        return (
            f"on a new instance the deployed rule's loss after {terms.horizon} iterations is at "
            f"most {rounded_up(value)}{above} in expectation, counted as {self.largest:.4g} where "
            "it is more."
        )


@dataclasses.dataclass(frozen=True)
class UserStatistic(BoundedClaim):
    """A number between 0 and 1 that a user computes from a rollout."""

    statistic: str
    """Its name among the experiment's statistics."""
    kind: Literal["statistic"] = "statistic"

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """As the user computes it."""
        return evidence.statistics[:, :, terms.statistics.index(self.statistic)][None]

    def sentence(self, value: float, terms: Terms) -> str:
        """Its expectation."""
        del terms
        return (
            f"on a new instance the deployed rule's {self.statistic} is at most "
            f"{rounded_up(value)} in expectation."
        )
