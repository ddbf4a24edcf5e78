"""What is certified of one kind of instances by itself."""

import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float

from surestep.bounds.family import normalised
from surestep.bounds.uniform import posterior_upper, quantile_uppers, sample_uppers
from surestep.certify.certificate import Statement, percent, rounded_down
from surestep.certify.claims.base import SLACK, Asserted, Basis, Claim, Terms, Truth, numbers
from surestep.certify.claims.shift import falsely_moved, with_shift
from surestep.certify.evidence import Evidence, reached_in
from surestep.certify.targets import ITERATIONS
from surestep.problem import reached

PREFIX = "instances: "
"""Names of such claims begin with it."""

_MISSES = 0.5
"""The part of the share that pays for how often the goal is missed; first hits have the rest."""


@dataclasses.dataclass(frozen=True)
class InStratum(Claim):
    """How often the goal is missed, and how soon a target is reached, on one kind of instances.

    Which train instances are of the kind follows from their thetas. Given that, they are
    independent draws from the law of this kind, so bounds for their number hold.
    """

    weight: ClassVar[float] = 0.2
    trait: int
    """Which of the plan's traits tells the kind."""
    above: float | None
    """Of the kind are instances whose trait is larger than this, if there is such a bound, ..."""
    most: float | None
    """... and at most this."""
    words: str
    """What these instances are."""
    target: int
    """Which of the plan's targets."""
    shares: tuple[float, ...]
    """Of new instances of this kind; the sentence is about the last one."""
    kind: Literal["stratum"] = "stratum"

    def inside(self, evidence: Evidence) -> Bool[np.ndarray, " instance"]:
        """Which instances are of this kind."""
        trait = evidence.traits[:, self.trait]
        low = -np.inf if self.above is None else self.above
        high = np.inf if self.most is None else self.most
        return (trait > low) & (trait <= high)

    def statement(self, basis: Basis) -> Statement:
        """The exact bound and order statistics, from the train instances of this kind."""
        terms, inside = basis.terms, self.inside(basis.evidence)
        evidence, number = basis.evidence.on(np.flatnonzero(inside)), int(inside.sum())
        value, posterior = self._missing(basis, evidence)
        point, drawn = {}, {}
        for share in self.shares:
            uppers, held = self._hits(basis, evidence, share)
            point[f"{share:g}"] = _plain(uppers[basis.deployed_sample])
            drawn[f"{share:g}"] = _plain(uppers[held].max())
        details: dict[str, Any] = {
            "stratum": self.words,
            "train_instances": number,
            "target": terms.targets[self.target].words(terms.above),
            "iterations": point,
            "iterations_posterior": drawn,
        }
        sentence = self._sentence(value, point, number, terms)
        stated = self._stated(basis, value, posterior, sentence, **details)
        return with_shift(stated, value)

    def _missing(self, basis: Basis, evidence: Evidence) -> tuple[float, float]:
        terms, number = basis.terms, len(evidence.thresholds)
        if number == 0:
            return 1.0, 1.0
        means = self._missed(evidence).mean(axis=1)
        spent = _MISSES * terms.ledger.of(self.name)
        common = (number, np.array(terms.log_prior))
        uppers = sample_uppers(means, *common, spent, "binomial")
        drawn = posterior_upper(means, *common, basis.log_posterior, spent, "binomial", uppers)
        return float(uppers[basis.deployed_sample]), float(drawn)

    def _missed(self, evidence: Evidence) -> Float[np.ndarray, "sample instance"]:
        return numbers(~reached(evidence.final, evidence.thresholds))

    def _hits(
        self, basis: Basis, evidence: Evidence, share: float
    ) -> tuple[Float[np.ndarray, " sample"], Bool[np.ndarray, " sample"]]:
        """For every sample, when the share has reached the target; and which may be drawn."""
        terms = basis.terms
        held = np.exp(normalised(basis.log_posterior)) > 0
        if len(evidence.thresholds) == 0:
            return np.full(len(held), np.inf), held
        spent = (1 - _MISSES) * terms.ledger.of(self.name) / len(self.shares)
        seen = reached_in(evidence.reach, ITERATIONS, self.target)
        return quantile_uppers(seen, share, np.array(terms.log_prior), spent), held

    def _sentence(
        self, failure: float, hits: dict[str, float | None], number: int, terms: Terms
    ) -> str:
        counted = f"{number} of {terms.train_size} train instances"
        found = [share for share in self.shares if hits[f"{share:g}"] is not None]
        soon = "no number of iterations is certified"
        if found:
            soon = (
                f"at least {percent(found[-1])} {terms.targets[self.target].words(terms.above)} "
                f"after {hits[f'{found[-1]:g}']:.0f} iterations"
            )
        return (
            f"of new instances that are {self.words} ({counted}), {soon}, and the goal is reached "
            f"within {terms.horizon} iterations with probability at least "
            f"{rounded_down(1 - failure)}."
        )

    def says_something(self, statement: Statement) -> bool:
        """Whether a number of iterations is certified, or that half of them reach the goal."""
        hits = statement.details["iterations"].values()
        return statement.value <= 0.5 or any(one is not None for one in hits)

    def exact(self, truth: Truth) -> Float[np.ndarray, " sample"]:
        """How often the goal is missed on instances of this kind."""
        chances = self._chances(truth)
        return self._missed(truth.table) @ chances

    def _chances(self, truth: Truth) -> Float[np.ndarray, " kind"]:
        """The law of instances of this kind; zeros where there are none."""
        inside = np.where(self.inside(truth.table), truth.chances, 0.0)
        return inside / max(inside.sum(), 1e-300)

    def judge(self, asserted: Asserted, exact: np.ndarray, truth: Truth) -> tuple[bool, float]:
        """Compare with the law of instances of this kind, and with laws near it."""
        statement, chosen = asserted.statement, asserted.deployed_sample
        wrong = bool(exact[chosen] > statement.value + SLACK)
        wrong |= bool(exact @ asserted.posterior > statement.posterior_value + SLACK)
        chances = self._chances(truth)
        if not chances.any():
            return False, float("nan")
        reach = reached_in(truth.table.reach, ITERATIONS, self.target)
        held = asserted.posterior > 0
        for name, rows, weights in (
            ("iterations", slice(chosen, chosen + 1), np.ones(1)),
            ("iterations_posterior", held, asserted.posterior[held]),
        ):
            for share, needed in statement.details[name].items():
                if needed is not None:
                    there = weights @ ((reach[rows] <= needed) @ chances)
                    wrong |= bool(there < float(share) - SLACK)
        failed = self._missed(truth.table.of(slice(chosen, chosen + 1)))[0]
        wrong |= falsely_moved(statement, failed, chances)
        return wrong, float(statement.value - exact[chosen])


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
