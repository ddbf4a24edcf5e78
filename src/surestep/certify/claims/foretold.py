"""The claim about predictions: how much worse an outcome may be than what was predicted of it."""

import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from surestep.bounds.family import normalised
from surestep.bounds.uniform import quantile_uppers
from surestep.certify.certificate import Statement, percent, rounded_up
from surestep.certify.claims.base import SLACK, Asserted, Basis, Claim, Terms, Truth
from surestep.certify.claims.shift import falsely_moved, with_shift
from surestep.certify.evidence import Evidence
from surestep.certify.traits import Difficulty
from surestep.storage.records import to_plain

_MAIN = 0.5
"""The part of the share that the headline is paid with; the others have the rest."""


@dataclasses.dataclass(frozen=True)
class Foretold(Claim):
    """By which factor shares of new instances may be worse than predicted from the prior set."""

    weight: ClassVar[float] = 0.2
    trait: int
    """Which of the plan's traits is the prediction."""
    shares: tuple[float, ...]
    """Of new instances."""
    share: float
    """The share that the sentence is about."""
    kind: Literal["foretold"] = "foretold"

    def ratios(self, terms: Terms, evidence: Evidence) -> Float[np.ndarray, "sample instance"]:
        """The outcome over the prediction; infinite where the target is not reached."""
        trait = self._difficulty(terms)
        return trait.seen(evidence) / evidence.traits[:, self.trait]

    def _difficulty(self, terms: Terms) -> Difficulty:
        trait = terms.traits[self.trait]
        assert isinstance(trait, Difficulty)
        return trait

    def statement(self, basis: Basis) -> Statement:
        """Order statistics of the ratios, for all shares at once."""
        terms, held = basis.terms, np.exp(normalised(basis.log_posterior)) > 0
        ratios = self.ratios(terms, basis.evidence)
        point, drawn = {}, {}
        for share in self.shares:
            rest = (1 - _MAIN) / max(len(self.shares) - 1, 1)
            part = (_MAIN if len(self.shares) > 1 else 1.0) if share == self.share else rest
            spent = part * terms.ledger.of(self.name)
            uppers = quantile_uppers(ratios, share, np.array(terms.log_prior), spent)
            point[share] = float(uppers[basis.deployed_sample])
            drawn[share] = float(uppers[held].max())
        value = point[self.share]
        trait = self._difficulty(terms)
        details: dict[str, Any] = {
            "predictor": to_plain(trait),
            "predicted": _what(trait, terms),
            "share": self.share,
            "factors": _plain(point),
            "factors_posterior": _plain(drawn),
        }
        sentence = self._sentence(value, terms)
        stated = self._stated(basis, value, drawn[self.share], sentence, **details)
        return with_shift(stated, 1 - self.share if np.isfinite(value) else 1.0)

    def _sentence(self, value: float, terms: Terms) -> str:
        trait = self._difficulty(terms)
        share = f"at least {percent(self.share)} of new instances"
        if not np.isfinite(value):
            return f"nothing is certified of predictions for {percent(self.share)} of instances."
        caution = f"this is said of {percent(self.share)} of new instances, of none by itself"
        if trait.outcome == "iterations":
            words = terms.targets[trait.target].words(terms.above)
            return (
                f"{share} {words} after at most {rounded_up(value)} times the iterations that are "
                f"predicted for each of them beforehand ({caution})."
            )
        least = f"; losses below {trait.floor:g} count as that" if trait.floor > 0 else ""
        return (
            f"{share} end with a loss{_above(terms)} of at most {rounded_up(value)} times what is "
            f"predicted for each of them beforehand ({caution}{least})."
        )

    def says_something(self, statement: Statement) -> bool:
        """Whether a factor is certified for the headline's share."""
        return bool(np.isfinite(statement.value))

    def exact(self, truth: Truth) -> np.ndarray:
        """Nothing: statements are compared with the distribution itself."""
        return np.zeros(len(truth.table.losses))

    def judge(self, asserted: Asserted, exact: np.ndarray, truth: Truth) -> tuple[bool, float]:
        """Whether fewer instances than promised are within a factor of their prediction."""
        del exact
        ratios = self.ratios(truth.terms, truth.table)
        alone = np.eye(len(asserted.posterior))[asserted.deployed_sample]
        details, wrong = asserted.statement.details, False
        for name, drawn in (("factors", alone), ("factors_posterior", asserted.posterior)):
            for share, factor in details[name].items():
                if factor is not None:
                    wrong |= bool(drawn @ truth.mean(ratios <= factor) < float(share) - SLACK)
        beyond = (ratios[asserted.deployed_sample] > asserted.statement.value).astype(float)
        wrong |= falsely_moved(asserted.statement, beyond, truth.chances)
        return wrong, float("nan")


def _what(trait: Difficulty, terms: Terms) -> str:
    if trait.outcome == "iterations":
        return f"iterations until instances {terms.targets[trait.target].words(terms.above)}"
    return f"loss{_above(terms)} after {terms.horizon} iterations"


def _above(terms: Terms) -> str:
    return f" above {terms.above}" if terms.above else ""


def _plain(factors: dict[float, float]) -> dict[str, float | None]:
    return {f"{s:g}": value if np.isfinite(value) else None for s, value in factors.items()}
