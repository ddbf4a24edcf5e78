"""A certificate that goes on until its claim is proved or refuted: plan, outcomes and statements.

The claim is about the deployed rule alone, and every instance is new, so no prior is paid for.
Pure, so that anyone can compute it again.
"""

import dataclasses
import functools
import hashlib
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float

from surestep.base.errors import ConfigurationError
from surestep.bounds.budget import Share
from surestep.bounds.sequential import Forecast, SequentialTest, Verdict
from surestep.certify.asked import Asked
from surestep.certify.certificate import SCHEMA, Certificate, Statement, percent, rounded_up
from surestep.problem import Goal, fingerprint, reached
from surestep.storage.records import to_json, to_plain
from surestep.storage.run_folder import axes

PROVED, REFUTED = "at least", "at most"
"""The names of the two statements, and of their shares of epsilon."""

_FOR_PROOF = 0.8
"""Of epsilon: a proof takes long, a refutation of a claim that is wrong does not."""
_BATCHES = 16
"""In about so many batches a claim is decided."""
_LARGEST_BATCH = 1024


@dataclasses.dataclass(frozen=True)
class UntilPlan:
    """What is going to be proved or refuted, and by which bets: fixed before anything is drawn.

    Instances are drawn by keys that are made from this plan's hash, so whoever changes the plan
    draws others.
    """

    problem: str
    claim: str
    """In the words of `Asked`."""
    iterations: int
    above: str
    """What the losses are called that closeness is counted from; nothing where that is 0."""
    goal: Goal
    pool: str
    """The data that instances are made from, if they are."""
    epsilon: float
    shares: tuple[Share, ...]
    seed: int
    batch: int
    """How many instances are drawn and rolled out at a time."""
    deployed_sample: int
    solver_sha256: str
    expected: tuple[int, int]
    """Successes and failures of a pilot, by which the bets are guided: of instances that were drawn
    for this alone."""
    test: SequentialTest
    kind: Literal["until"] = "until"

    def __post_init__(self) -> None:
        # A plan is a file, which anyone may have written.
        if min(self.batch, self.iterations) < 1 or min(self.expected) < 0:
            raise ConfigurationError("a plan has at least one instance a batch and one iteration")

    @functools.cached_property
    def sha256(self) -> str:
        """The plan's hash."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()

    @property
    def asked(self) -> Asked:
        """The claim."""
        return Asked.read(self.claim)

    @functools.cached_property
    def forecast(self) -> Forecast:
        """How it is going to come out, if new instances are like those expected."""
        return self.test.forecast(*self.expected)

    @property
    def words(self) -> str:
        """What is claimed of an instance."""
        reach = self.asked.target.words(self.above)
        return f"{reach} after {self.iterations} iterations of the deployed rule"


def plan_until(
    asked: Asked,
    epsilon: float,
    expected: tuple[int, int],
    tile: int,
    **facts: Any,
) -> UntilPlan:
    """Fix everything, from the claim and a pilot's successes and failures.

    Batches are a whole number of tiles, the more the longer it is going to take.
    """
    if asked.share is None:
        raise ConfigurationError(
            f"say which share of new instances is to be proved: '{asked.words}: 0.999'"
        )
    if not 0 < epsilon < 1:
        raise ConfigurationError(f"epsilon must lie strictly between 0 and 1, not {epsilon}")
    levels = (_FOR_PROOF * epsilon, (1 - _FOR_PROOF) * epsilon)
    test = SequentialTest.guided(asked.share, *expected, levels)
    middle = min(test.forecast(*expected).needed[1], 1e9)
    batch = tile * max(1, round(min(middle / _BATCHES, _LARGEST_BATCH) / tile))
    shares = (Share(PROVED, levels[0]), Share(REFUTED, levels[1]))
    return UntilPlan(
        claim=asked.words,
        epsilon=epsilon,
        shares=shares,
        batch=batch,
        expected=expected,
        test=test,
        **facts,
    )


@dataclasses.dataclass(frozen=True)
class UntilOutcomes:
    """What was observed, in the order in which instances were drawn."""

    losses: Float[np.ndarray, " instance"] = dataclasses.field(metadata=axes("instance"))
    """After the claim's iterations."""
    levels: Float[np.ndarray, " instance"] = dataclasses.field(metadata=axes("instance"))
    """The loss that every instance is to reach."""

    @classmethod
    def nothing(cls) -> "UntilOutcomes":
        """Before anything was drawn."""
        return cls(np.zeros(0), np.zeros(0))

    @property
    def size(self) -> int:
        """How many instances there are."""
        return len(self.losses)

    @property
    def hits(self) -> Bool[np.ndarray, " instance"]:
        """Which instances have reached what was claimed."""
        return reached(self.losses, self.levels)

    @property
    def sha256(self) -> str:
        """A hash of every bit that was observed."""
        return fingerprint(vars(self))

    def then(self, more: "UntilOutcomes") -> "UntilOutcomes":
        """These, and more that were drawn after them."""
        return UntilOutcomes(
            np.concatenate([self.losses, more.losses]), np.concatenate([self.levels, more.levels])
        )

    def first(self, number: int) -> "UntilOutcomes":
        """The first of them."""
        return UntilOutcomes(self.losses[:number], self.levels[:number])


@dataclasses.dataclass(frozen=True)
class Course:
    """How far a claim has come."""

    verdict: Verdict = "undecided"
    decided_after: int = 0
    """After how many instances it was decided; all of them, if it is not."""
    low: float = 0.0
    high: float = 1.0
    """Between which numbers the probability lies: the best bounds after any batch."""
    successes: int = 0
    size: int = 0
    """How many instances were seen."""

    def then(self, plan: UntilPlan, hits: Bool[np.ndarray, " instance"]) -> "Course":
        """After one more batch."""
        test, failures = plan.test, self.size - self.successes
        verdict, after = self.verdict, self.decided_after
        if verdict == "undecided":
            verdict, after = test.decide(hits, self.successes, failures)
        size, successes = self.size + len(hits), self.successes + int(hits.sum())
        low, high = (float(bound) for bound in test.bounds(successes, size - successes))
        low, high = max(low, self.low), min(high, self.high)
        # The same wealth decides; it may have been larger in between.
        low = max(low, test.probability) if verdict == "proved" else low
        high = min(high, test.probability) if verdict == "refuted" else high
        return Course(verdict, after, low, high, successes, size)


def course_of(plan: UntilPlan, outcomes: UntilOutcomes) -> Course:
    """What all outcomes together show, batch after batch."""
    now, hits = Course(), outcomes.hits
    for first in range(0, outcomes.size, plan.batch):
        now = now.then(plan, hits[first : first + plan.batch])
    return now


def until_certificate(plan: UntilPlan, outcomes: UntilOutcomes) -> Certificate:
    """The certificate of all outcomes so far."""
    return Certificate(
        schema=SCHEMA,
        problem=plan.problem,
        horizon=plan.iterations,
        epsilon=plan.epsilon,
        ledger=list(plan.shares),
        deployed_sample=plan.deployed_sample,
        solver_sha256=plan.solver_sha256,
        plan_sha256=plan.sha256,
        evidence_sha256=outcomes.sha256,
        data_sha256={},
        sizes={"train": outcomes.size},
        statements=_statements(plan, outcomes),
    )


def _statements(plan: UntilPlan, outcomes: UntilOutcomes) -> list[Statement]:
    now = course_of(plan, outcomes)
    share, number = percent(plan.test.probability), f"{now.decided_after} instances"
    found = {
        "proved": f"{share} was asked for, and is proved after {number}",
        "refuted": f"{share} was asked for, and is refuted after {number}",
        "undecided": f"{share} was asked for, and is neither proved nor refuted after {number}",
    }[now.verdict]
    # By the failures, whose first digits tell; on the safe side in both directions.
    least = percent(1 - float(rounded_up(1 - now.low, 3)))
    most = percent(float(rounded_up(now.high, 6)))
    details: dict[str, Any] = {
        "claim": plan.claim,
        "verdict": now.verdict,
        "decided_after": now.decided_after,
        "reached": int(outcomes.hits.sum()),
        "drawn": outcomes.size,
        "expected": to_plain(plan.forecast),
    }
    sentences = {
        PROVED: (now.low, f"at least {least} of new instances {plan.words} ({found})."),
        REFUTED: (now.high, f"at most {most} of new instances {plan.words}."),
    }
    return [
        Statement(
            name=name,
            value=sentences[name][0],
            posterior_value=sentences[name][0],
            confidence=1 - plan.epsilon,
            epsilon=next(one.epsilon for one in plan.shares if one.name == name),
            sentence=f"With confidence {percent(1 - plan.epsilon)}, {sentences[name][1]}",
            assumptions=_assumptions(plan, outcomes),
            estimates=[],
            details=details if name == PROVED else {},
        )
        for name in ((PROVED, REFUTED) if now.high < 1 - 1e-6 else (PROVED,))
    ]


def _assumptions(plan: UntilPlan, outcomes: UntilOutcomes) -> list[str]:
    stock = f"instances are made from this stock of data alone: {plan.pool}"
    return [
        f"the {outcomes.size} instances are independent draws from the distribution that new "
        "instances come from, drawn by keys made from the plan's hash; all that were drawn are "
        "counted, and the bounds hold whenever the drawing stops",
        "every rollout starts at the problem's start (where a start was learned, moving there is "
        "part of the rule)",
        *([stock] if plan.pool else []),
    ]
