"""The claim about the expected loss where the goal is reached: the paper's, made rigorous."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float

from surestep.bounds import sublevel_family
from surestep.bounds.uniform import sample_uppers
from surestep.certify.certificate import Statement, rounded_up
from surestep.certify.claims.base import SLACK, Asserted, Basis, Claim, Truth
from surestep.certify.claims.loss import GoalMissed
from surestep.problem import reached


@dataclasses.dataclass(frozen=True)
class LossWhereReached(Claim):
    """The expected loss on instances where the goal is reached."""

    needs_bound: ClassVar[bool] = True
    second_moment: float
    """The declared bound on the second moment of the goal's threshold."""
    kind: Literal["sublevel"] = "sublevel"

    def statement(self, basis: Basis) -> Statement:
        """Half of the share pays for success probabilities, half for the paper's bound."""
        terms, evidence = basis.terms, basis.evidence
        log_prior, size = np.array(terms.log_prior), terms.train_size
        half = terms.ledger.of(self.name) / 2
        misses = GoalMissed("").values(terms, evidence)[0].mean(axis=1)
        success = 1 - sample_uppers(misses, size, log_prior, half, "binomial")
        good = reached(evidence.final, evidence.thresholds)
        means = np.mean(np.where(good, evidence.final, 0.0), axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            risks = np.where(success > 0, means / success, np.inf)
            moments = np.where(success > 0, self.second_moment / success**2, np.inf)
        family = sublevel_family(log_prior, risks, moments, size)
        lambdas = np.array(terms.lambdas)
        point = family.point_bound(basis.deployed_sample, lambdas, half)
        return self._stated(
            basis,
            point,
            family.posterior_bound(basis.log_posterior, lambdas, half),
            "on a new instance on which it reaches the goal, the deployed rule has an expected "
            f"loss of at most {rounded_up(point)}."
            if np.isfinite(point)
            else "no expected loss where the goal is reached is certified: it is reached too "
            "rarely.",
            assumptions=(
                "the second moment of the goal's threshold is at most the declared "
                f"{self.second_moment:.6g}",
                "the loss is never negative",
            ),
            success_lower=float(success[basis.deployed_sample]),
        )

    def says_something(self, statement: Statement) -> bool:
        """Whether it is more than that the loss is at most the goal there."""
        return statement.value <= 0.95 * float(np.sqrt(self.second_moment))

    def exact(self, truth: Truth) -> Float[np.ndarray, " sample"]:
        """The conditional means."""
        losses = truth.table.final
        good = reached(losses, truth.table.thresholds)
        return truth.mean(np.where(good, losses, 0.0)) / truth.mean(good)

    def judge(self, asserted: Asserted, exact: np.ndarray, truth: Truth) -> tuple[bool, float]:
        """Compare with the conditional means."""
        del truth
        statement, point = asserted.statement, exact[asserted.deployed_sample]
        wrong = point > statement.value + SLACK
        wrong |= exact @ asserted.posterior > statement.posterior_value + SLACK
        return bool(wrong), float(statement.value - point)
