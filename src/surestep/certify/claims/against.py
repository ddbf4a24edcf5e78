"""Claims that compare the deployed rule with a classical one, the opponent."""

import abc
import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from surestep.certify.certificate import rounded_down, rounded_up
from surestep.certify.claims.base import Basis, BinaryClaim, BoundedClaim, Terms, numbers
from surestep.certify.evidence import Evidence

DECADES = 3.0
"""Advantages are measured in powers of ten and clipped at this many, either way."""


@dataclasses.dataclass(frozen=True)
class _Race(BinaryClaim):
    """Who reaches a loss with fewer gradient evaluations."""

    weight: ClassVar[float] = 0.5
    opponent: str

    @abc.abstractmethod
    def column(self, terms: Terms) -> int:
        """Where the first hits are found that the race is about."""

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """1 where the loss is not reached, or later than by the opponent."""
        ours, theirs = self._hits(terms, evidence)
        return numbers(~(np.isfinite(ours) & (ours <= theirs)))[None]

    def details(self, basis: Basis) -> dict[str, Any]:
        """On how many instances both need equally many gradient evaluations."""
        ours, theirs = self._hits(basis.terms, basis.evidence)
        mine = ours[basis.deployed_sample]
        return {"ties_on_train_set": int(np.sum(np.isfinite(mine) & (mine == theirs)))}

    def _hits(self, terms: Terms, evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
        column, opponent = self.column(terms), terms.opponents.index(self.opponent)
        return evidence.hits[:, :, column], evidence.opponent_hits[opponent, :, column]


@dataclasses.dataclass(frozen=True)
class Faster(_Race):
    """A fixed loss is reached with no more gradient evaluations than the opponent's."""

    tolerance: float
    """The loss to reach."""
    kind: Literal["faster"] = "faster"

    @property
    def tolerance_to_hit(self) -> float | None:
        """The loss to reach."""
        return self.tolerance

    def column(self, terms: Terms) -> int:
        """That of the tolerance."""
        return terms.hit_tolerances.index(self.tolerance)

    def sentence(self, value: float, terms: Terms) -> str:
        """The probability of being faster."""
        return (
            f"on a new instance the deployed rule reaches a loss of {self.tolerance:.4g} within "
            f"{terms.horizon} iterations, and with no more gradient evaluations than "
            f"{self.opponent}, with probability at least {rounded_down(1 - value)}."
        )


@dataclasses.dataclass(frozen=True)
class Sooner(_Race):
    """Every instance's goal is reached with no more gradient evaluations than the opponent's."""

    kind: Literal["sooner"] = "sooner"

    @property
    def hits_goal(self) -> bool:
        """It is about the goal."""
        return True

    def column(self, terms: Terms) -> int:
        """The last one."""
        return terms.hits - 1

    def sentence(self, value: float, terms: Terms) -> str:
        """The probability of being sooner."""
        return (
            f"on a new instance the deployed rule reaches the goal within {terms.horizon} "
            f"iterations, and with no more gradient evaluations than {self.opponent}, with "
            f"probability at least {rounded_down(1 - value)}."
        )


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
    needs_bound: ClassVar[bool] = True
    larger_is_better: ClassVar[bool] = True
    opponent: str
    kind: Literal["advantage"] = "advantage"

    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """The advantage, clipped and turned around."""
        theirs = evidence.opponent_losses[terms.opponents.index(self.opponent)]
        gained = _decades(theirs) - _decades(evidence.final)
        return (0.5 - 0.5 * np.clip(gained / DECADES, -1.0, 1.0))[None]

    def number(self, mean: float) -> float:
        """The mean advantage."""
        return DECADES * (1 - 2 * mean)

    def sentence(self, value: float, terms: Terms) -> str:
        """The expected advantage."""
        size = rounded_down(value) if value >= 0 else rounded_up(-value)
        word = "smaller" if value >= 0 else "larger"
        return (
            f"on a new instance the deployed rule's loss after {terms.horizon} iterations is in "
            f"expectation {'at least' if value >= 0 else 'at most'} {size} powers of ten "
            f"{word} than that of {self.opponent} after as many, advantages and losses beyond "
            f"{DECADES:g} powers of ten counted as {DECADES:g}."
        )


def _decades(losses: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Logarithms that stay finite: what is smaller than 1e-300 or larger than 1e300 is as good."""
    return np.log10(np.clip(losses, 1e-300, 1e300))
