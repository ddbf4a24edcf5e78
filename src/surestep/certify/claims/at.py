"""The claim that somebody has named: so many instances are so close after so many iterations."""

import dataclasses
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from surestep.certify.certificate import percent, rounded_up
from surestep.certify.claims.base import Basis, BinaryClaim, Terms, numbers
from surestep.certify.evidence import Evidence
from surestep.problem import reached


@dataclasses.dataclass(frozen=True)
class MissedAt(BinaryClaim):
    """How often a target is missed after a number of iterations."""

    target: int
    """Which of the plan's targets."""
    iteration: int
    share: float = 0.0
    """Of new instances, that is hoped to be shown; 0 if any share is welcome."""
    kind: Literal["at"] = "at"

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """1 where the loss after the iteration is above the target."""
        known = (evidence.references, evidence.starts, evidence.thresholds)
        levels = terms.targets[self.target].levels(*known)
        losses = evidence.losses[:, :, terms.iterations.index(self.iteration)]
        return numbers(~reached(losses, levels))[None]

    def details(self, basis: Basis) -> dict[str, Any]:
        """What was asked for."""
        del basis
        return {"asked": self.share} if self.share else {}

    def sentence(self, value: float, terms: Terms) -> str:
        """The share of new instances that are there."""
        words = terms.targets[self.target].words(terms.above)
        shown = "" if value <= 1 - self.share else "not "
        asked = f" ({percent(self.share)} was asked for, and is {shown}shown)" if self.share else ""
        # By the failures, whose first digits tell.
        least = percent(1 - min(float(rounded_up(value, 3)), 1.0))
        return (
            f"at least {least} of new instances {words} after {self.iteration} iterations of the "
            f"deployed rule{asked}."
        )
