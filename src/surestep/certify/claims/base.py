"""A claim: one thing to certify, fixed before a train loss exists.

A kind of claim is one final class. It says which values in [0, 1] it is about, which bound holds
for their means, in which sentence, and what is true of a distribution that is known (for audits).
"""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped

from surestep.base.errors import ConfigurationError
from surestep.bounds.betting import Bet, checked_bets, mean_uppers
from surestep.bounds.budget import Ledger, Share
from surestep.bounds.uniform import (
    Bound,
    drawn_upper,
    log_levels,
    posterior_upper,
    sample_uppers,
)
from surestep.certify.certificate import Statement, percent
from surestep.certify.evidence import Evidence
from surestep.certify.targets import Target

EARLIER = "earlier certificates"
"""The ledger's name for what was spent on the same train instances before."""

SLACK = 1e-12
"""What rounding may add to a truth before a statement counts as false."""

_SAYING = 0.95
"""Values lie in [0, 1]; an upper bound for their mean above this is not worth a sentence."""

_AT_ONCE = 2**23
"""How many values are in memory at a time while they are averaged or bet on."""


@dataclasses.dataclass(frozen=True)
class Terms:
    """What all claims of a plan share."""

    epsilon: float
    shares: tuple[Share, ...]
    """Which claim may spend how much of epsilon."""
    horizon: int
    iterations: tuple[int, ...]
    """After how many iterations train losses are kept."""
    train_size: int
    log_prior: tuple[float, ...]
    """Normalised log-weights of the prior that the certificates bet with."""
    lambdas: tuple[float, ...]
    """The lambdas of the paper's bound."""
    opponents: tuple[str, ...]
    statistics: tuple[str, ...]
    pool: str
    """The data that instances are made from, if they are."""
    targets: tuple[Target, ...]
    """The losses of each instance's own for which it is seen when they are reached."""
    above: str
    """What the losses are called that closeness is counted from; nothing where that is 0."""
    bounded: bool
    """Whether losses are never negative."""

    @functools.cached_property
    def ledger(self) -> Ledger:
        """The budget; made anew, so that shares that do not add up are found."""
        ledger = Ledger(self.epsilon)
        for share in self.shares:
            ledger = ledger.spend(share.name, share.epsilon)
        return ledger


@dataclasses.dataclass(frozen=True)
class Basis:
    """What statements are computed from."""

    terms: Terms
    evidence: Evidence
    log_posterior: Float[np.ndarray, " sample"]
    deployed_sample: int


@dataclasses.dataclass(frozen=True)
class Truth:
    """A distribution over finitely many kinds of instances: every mean is known exactly."""

    terms: Terms
    table: Evidence
    """One entry for every kind, in the place of instances."""
    chances: Float[np.ndarray, " kind"]

    def mean(self, values: Shaped[np.ndarray, "*rest kind"]) -> Float[np.ndarray, "*rest"]:
        """The exact mean over the distribution."""
        return values @ self.chances


@dataclasses.dataclass(frozen=True)
class Asserted:
    """A statement, the posterior that it speaks of, and the deployed sample."""

    statement: Statement
    posterior: Float[np.ndarray, " sample"]
    """The weights."""
    deployed_sample: int


@dataclasses.dataclass(frozen=True)
class Claim(abc.ABC):
    """One thing to certify."""

    weight: ClassVar[float] = 1.0
    """Epsilon is divided in proportion to these, over the claims that are made."""
    needs_bound: ClassVar[bool] = False
    """Whether it holds only where losses are never negative."""

    name: str

    @abc.abstractmethod
    def statement(self, basis: Basis) -> Statement:
        """What is asserted, from plan and evidence alone."""

    def says_something(self, statement: Statement) -> bool:
        """Whether a statement rules anything out."""
        return bool(np.isfinite(statement.value))

    @abc.abstractmethod
    def exact(self, truth: Truth) -> np.ndarray:
        """What is true of every sample."""

    @abc.abstractmethod
    def judge(self, asserted: Asserted, exact: np.ndarray, truth: Truth) -> tuple[bool, float]:
        """Whether a statement is false, for the deployed sample or the posterior; how loose."""

    def _stated(
        self,
        basis: Basis,
        value: float,
        posterior: float,
        sentence: str,
        assumptions: tuple[str, ...] = (),
        **details: Any,
    ) -> Statement:
        terms = basis.terms
        return Statement(
            name=self.name,
            value=value,
            posterior_value=posterior,
            confidence=1 - terms.epsilon,
            epsilon=terms.ledger.of(self.name),
            sentence=f"With confidence {percent(1 - terms.epsilon)}, {sentence}",
            assumptions=[*common_assumptions(terms), *assumptions],
            estimates=[],
            details=details,
        )


BoundedForm = Literal["chernoff", "pac-bayes-kl", "betting"]
"""The bounds there are for the mean of values that lie anywhere between 0 and 1."""


class MeanClaim(Claim):
    """A claim about the mean of values in [0, 1]: small is good."""

    larger_is_better: ClassVar[bool] = False
    """Whether the statement's number, unlike the mean, is good where it is large."""

    @property
    @abc.abstractmethod
    def bound(self) -> Bound:
        """Which bound holds for the mean."""

    @abc.abstractmethod
    def values(
        self, terms: Terms, evidence: Evidence
    ) -> Float[np.ndarray, "statistic sample instance"]:
        """One value for every sample and instance; several statistics hold at once."""

    @abc.abstractmethod
    def sentence(self, value: float, terms: Terms) -> str:
        """What is asserted of the deployed rule, after "With confidence ...,"."""

    @property
    def statistics(self) -> int:
        """How many statistics `values` has."""
        return 1

    def says_something(self, statement: Statement) -> bool:
        """Whether the mean is bounded by clearly less than the values are."""
        sign = -1 if self.larger_is_better else 1
        return bool(sign * statement.value <= sign * self.number(_SAYING))

    def number(self, mean: float) -> float:
        """The statement's number, from a mean."""
        return mean

    def details(self, basis: Basis) -> dict[str, Any]:
        """What else the statement tells."""
        del basis
        return {}

    def statement(self, basis: Basis) -> Statement:
        """The bound on the mean, in the claim's own unit."""
        point, posterior = (self.number(float(upper[0])) for upper in self.uppers(basis))
        sentence = self.sentence(point, basis.terms)
        return self._stated(basis, point, posterior, sentence, **self.details(basis))

    def uppers(self, basis: Basis, part: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds for the deployed rule and for the posterior, one a statistic.

        `part` of the claim's share of epsilon pays for them.
        """
        terms, evidence, bound = basis.terms, basis.evidence, self.bound
        size, log_prior = terms.train_size, np.array(terms.log_prior)
        # All statistics of a claim hold at once: they divide its share.
        share = part * terms.ledger.of(self.name) / max(self.statistics, 1)
        if isinstance(bound, tuple):
            levels = log_levels(log_prior, share)
            uppers = self._of_samples(
                terms, evidence, lambda values, few: mean_uppers(values, levels[few], bound)
            )
            posterior = drawn_upper(uppers, basis.log_posterior)
        else:
            means = self.means(terms, evidence)
            uppers = sample_uppers(means, size, log_prior, share, bound)
            posterior = posterior_upper(
                means, size, log_prior, basis.log_posterior, share, bound, uppers
            )
        return uppers[:, basis.deployed_sample], posterior

    def means(self, terms: Terms, evidence: Evidence) -> Float[np.ndarray, "statistic sample"]:
        """The means of the values."""
        return self._of_samples(terms, evidence, lambda values, _: values.mean(axis=2))

    def _of_samples(
        self,
        terms: Terms,
        evidence: Evidence,
        reduced: Callable[[np.ndarray, slice], np.ndarray],
    ) -> Float[np.ndarray, "statistic sample"]:
        """What becomes of the values of a few samples at a time.

        The values of all could take a hundred times the memory of the losses they come from.
        """
        samples, size, _ = evidence.losses.shape
        few = max(1, _AT_ONCE // (max(self.statistics, 1) * size))
        slices = [slice(first, first + few) for first in range(0, samples, few)]
        parts = [reduced(self.values(terms, evidence.of(one)), one) for one in slices]
        return np.concatenate(parts, axis=1)

    def exact(self, truth: Truth) -> Float[np.ndarray, "statistic sample"]:
        """The means of the values."""
        return truth.mean(self.values(truth.terms, truth.table))

    def judge(self, asserted: Asserted, exact: np.ndarray, truth: Truth) -> tuple[bool, float]:
        """Compare the statement's numbers with the exact means."""
        del truth
        statement, sign = asserted.statement, -1 if self.larger_is_better else 1
        point = self.number(float(exact[0, asserted.deployed_sample]))
        average = self.number(float(exact[0] @ asserted.posterior))
        wrong = sign * point > sign * statement.value + SLACK
        wrong |= sign * average > sign * statement.posterior_value + SLACK
        return bool(wrong), float(sign * (statement.value - point))


class BinaryClaim(MeanClaim):
    """A claim whose values are 0 or 1: its mean has an exact bound."""

    @property
    def bound(self) -> Bound:
        """The exact one."""
        return "binomial"


@dataclasses.dataclass(frozen=True)
class BoundedClaim(MeanClaim):
    """A claim whose values lie anywhere between 0 and 1."""

    form: BoundedForm = dataclasses.field(default="chernoff", kw_only=True)
    bets: tuple[Bet, ...] = dataclasses.field(default=(), kw_only=True)
    """What is bet on the mean, where the form is betting."""

    def __post_init__(self) -> None:
        if self.form == "betting":
            checked_bets(self.bets)
        elif self.bets:
            raise ConfigurationError(f"{self.name!r} has bets, and its form is {self.form}")

    @property
    def bound(self) -> Bound:
        """The one that the plan names."""
        return self.bets if self.form == "betting" else self.form

    def details(self, basis: Basis) -> dict[str, Any]:
        """Which bound it is."""
        del basis
        return {"form": self.form}


def common_assumptions(terms: Terms) -> list[str]:
    """What every statement of a certificate rests on."""
    charged = any(share.name == EARLIER for share in terms.shares)
    opened = (
        "they were opened before: what was spent on them then is charged here, and neither plan "
        "nor epsilon depend on what was found"
        if charged
        else "they were opened after the plan was fixed"
    )
    stock = f"instances are made from this stock of data alone: {terms.pool}"
    return [
        f"the {terms.train_size} train instances are independent draws from the distribution that "
        f"new instances come from; {opened}",
        "every rollout starts at the problem's start (where a start was learned, moving there is "
        "part of the rule)",
        *([stock] if terms.pool else []),
    ]


def numbers(missed: Bool[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Where something is missed, as 0 and 1."""
    return missed.astype(np.float64)
