"""Certificates of anyone's solver: the plan, made before outcomes are read, and the statements.

There is one solver and no prior, so nothing is paid for having chosen among samples.
"""

import dataclasses
import functools
import hashlib
from typing import Literal

import numpy as np

from surestep.base.errors import ConfigurationError
from surestep.bounds.budget import divide
from surestep.certify.asked import Asked
from surestep.certify.certificate import SCHEMA, Certificate, Statement, percent, rounded_up
from surestep.certify.claims import (
    Advantage,
    AnyClaim,
    ClippedLoss,
    GoalMissed,
    LossLevels,
    LossWhereReached,
    MissedAt,
    Saving,
    ShareOfGoal,
    Sooner,
    Within,
)
from surestep.certify.claims.base import common_assumptions
from surestep.certify.evidence import Evidence
from surestep.certify.outcomes import MINIMUM, PLAIN, Outcomes, negative
from surestep.certify.pilot import Pilot
from surestep.certify.plan import Plan
from surestep.certify.planning import plan_certificate
from surestep.certify.proposals import QUANTILES
from surestep.certify.settings import CertifySettings
from surestep.certify.statements import rigorous_statements
from surestep.certify.targets import Target
from surestep.storage.records import to_json
from surestep.train import Sampled

_NEAR = (0.5, 0.8, 0.95)
"""Losses that such shares of the pilot end below, where nothing else says what is close."""


@dataclasses.dataclass(frozen=True)
class OutcomeSettings:
    """What is said of whose outcomes."""

    solver: str = "the solver"
    """How sentences call the solver."""
    problem: str = "outcomes"
    """What the instances are."""
    epsilon: float = 0.05
    """The probability with which anything in the certificate may be false."""
    claims: tuple[str, ...] = ()
    """What is claimed, in words; nothing means what a pilot suggests."""
    accuracies: tuple[float, ...] = ()
    """How close to the minimum (or which losses) the iterations are certified for."""
    shares: tuple[float, ...] = (1e-2, 1e-4, 1e-6)
    """The same as shares of what lies between start and minimum, if the start is known."""
    signed: bool = False
    """Whether losses may be negative."""


@dataclasses.dataclass(frozen=True)
class OutcomePlan:
    """All that will be claimed of outcomes that nobody has looked at yet."""

    settings: OutcomeSettings
    pilot_sha256: str
    """The hash of the pilot's arrays; nothing without one."""
    pilot_size: int
    minima: bool
    """Whether losses are counted from minima."""
    hits: bool
    """Whether outcomes are successes and failures alone."""
    terms: Plan
    kind: Literal["outcomes"] = "outcomes"

    @property
    def plain_hits(self) -> bool:
        """Whether there is one success or failure for each instance."""
        return self.hits and self.terms.iterations == PLAIN

    @functools.cached_property
    def sha256(self) -> str:
        """The plan's hash."""
        return hashlib.sha256(to_json(self).encode()).hexdigest()


def plan_from_pilot(
    settings: OutcomeSettings, pilot: Outcomes, pilot_sha256: str, size: int
) -> OutcomePlan:
    """The plan that a pilot suggests, for so many independent instances."""
    _require(settings, pilot, "the pilot's")
    if pilot.plain_hits:
        return plan_of_hits(settings, size, pilot_sha256, pilot.size)
    known, bounded = pilot.minima is not None, not settings.signed
    targets = _targets(settings, pilot)
    names = tuple(pilot.opponents)
    evidence = pilot.evidence(targets, names)
    prior = Sampled.given(
        np.zeros((1, 1)), np.ones(1), evidence.final, evidence.thresholds, np.zeros(1)
    )
    plan = plan_certificate(
        CertifySettings(epsilon=settings.epsilon, opponents=names, compared=bool(names)),
        prior,
        Pilot(evidence, names),
        targets,
        MINIMUM if known else "",
        size,
        pilot.iterations,
        None,
        nonnegative=bounded,
    )
    forecast = rigorous_statements(plan, Pilot(evidence, names).forecast(size), np.zeros(1), 0)
    claims = [
        claim
        for claim, statement in zip(plan.claims, forecast, strict=True)
        if _makes_sense(claim, pilot, bounded or known) and claim.says_something(statement)
    ]
    return OutcomePlan(
        settings, pilot_sha256, pilot.size, known, pilot.hits, _with_claims(plan, claims, settings)
    )


def plan_of_claims(
    settings: OutcomeSettings, size: int, iterations: tuple[int, ...] = (), hits: bool = False
) -> OutcomePlan:
    """The plan of claims that somebody names, for outcomes after these iterations."""
    asked = [Asked.read(text) for text in settings.claims]
    if hits and any(one.target.kind != "goal" for one in asked):
        raise ConfigurationError("of hits only 'goal' can be claimed")
    named = sorted({one.iterations for one in asked if one.iterations is not None})
    if not iterations and len(named) < len({one.iterations for one in asked}):
        raise ConfigurationError(
            "a claim without 'in N iterations' needs to know after which iterations outcomes are "
            "recorded"
        )
    if any(one.target.kind == "start" for one in asked):
        named = [0, *named]
    kept = tuple(sorted({*iterations, *named}))
    counted = {not one.from_zero for one in asked if one.target.kind != "goal"}
    if len(counted) > 1:
        raise ConfigurationError(
            "claims are counted from minima ('within V') or from 0 ('loss V'), all of them"
        )
    targets = tuple(dict.fromkeys(one.target for one in asked))
    claims = [_claim(one, targets.index(one.target)) for one in asked]
    minima = counted == {True}
    plan = _bare(settings, size, kept, targets, MINIMUM if minima else "")
    return OutcomePlan(settings, "", 0, minima, hits, _with_claims(plan, claims, settings))


def plan_of_hits(
    settings: OutcomeSettings, size: int, pilot_sha256: str = "", pilot_size: int = 0
) -> OutcomePlan:
    """The plan for outcomes of which nothing is known but whether they were successes."""
    if settings.claims and [Asked.read(c).target.kind for c in settings.claims] != ["goal"]:
        raise ConfigurationError("of hits only 'goal' can be claimed")
    plan = _bare(settings, size, PLAIN, (Target("goal"),), "")
    plan = _with_claims(plan, [GoalMissed("no hit")], settings)
    return OutcomePlan(settings, pilot_sha256, pilot_size, False, True, plan)


def outcome_certificate(
    plan: OutcomePlan, outcomes: Outcomes, data_sha256: dict[str, str]
) -> Certificate:
    """The certificate of outcomes, which must be what the plan is for."""
    terms, settings = plan.terms, plan.settings
    evidence = evidence_for(plan, outcomes)
    statements = rigorous_statements(terms, evidence, np.zeros(1), 0)
    sizes = {"train": outcomes.size} | ({"pilot": plan.pilot_size} if plan.pilot_size else {})
    return Certificate(
        schema=SCHEMA,
        problem=f"{settings.solver} on {settings.problem}",
        horizon=terms.horizon,
        epsilon=terms.epsilon,
        ledger=list(terms.shares),
        deployed_sample=0,
        solver_sha256="",
        plan_sha256=plan.sha256,
        evidence_sha256=evidence.sha256,
        data_sha256=data_sha256,
        sizes=sizes,
        statements=[_reworded(statement, plan, outcomes) for statement in statements],
    )


def evidence_for(plan: OutcomePlan, outcomes: Outcomes) -> Evidence:
    """What the plan's claims are about, of outcomes that must be what it is for."""
    _require_planned(plan, outcomes)
    seen = outcomes.at(plan.terms.iterations)
    if not plan.minima:
        seen = dataclasses.replace(seen, minima=None)
    return seen.evidence(plan.terms.targets, plan.terms.opponents)


def _targets(settings: OutcomeSettings, pilot: Outcomes) -> tuple[Target, ...]:
    """What solves are to reach: as close as was said, or else as the pilot suggests."""
    if pilot.hits:
        return (Target("goal"),)
    found = [Target("loss", value) for value in settings.accuracies]
    counted = pilot.minima is not None or not settings.signed
    if pilot.started and counted:
        found += [Target("start", share) for share in settings.shares]
    if not found:
        ends = pilot.losses[:, -1] - (0.0 if pilot.minima is None else pilot.minima)
        ends = ends[np.isfinite(ends)]
        near = np.quantile(ends, _NEAR, method="higher") if ends.size else np.ones(1)
        # Shown with two digits, a little above what the pilot reached.
        found = [Target("loss", float(rounded_up(float(one), 2))) for one in np.unique(near)[::-1]]
    return tuple(found)


def _makes_sense(claim: AnyClaim, pilot: Outcomes, counted: bool) -> bool:
    """Whether what is known suffices for a claim to mean something."""
    if pilot.hits:
        return isinstance(claim, GoalMissed | Within)
    match claim:
        case GoalMissed() | ShareOfGoal() | LossWhereReached():
            return pilot.thresholds is not None and (counted or isinstance(claim, GoalMissed))
        case LossLevels(counted="left"):
            return pilot.started and counted
        case ClippedLoss() | Advantage():
            return counted
        case _:
            return True


def _bare(
    settings: OutcomeSettings,
    size: int,
    iterations: tuple[int, ...],
    targets: tuple[Target, ...],
    above: str,
) -> Plan:
    """A plan without claims."""
    return Plan(
        epsilon=settings.epsilon,
        shares=(),
        horizon=iterations[-1],
        iterations=iterations,
        train_size=size,
        log_prior=(0.0,),
        lambdas=(1.0,),
        opponents=(),
        statistics=(),
        pool="",
        targets=targets,
        above=above,
        bounded=not settings.signed,
        claims=(),
    )


def _claim(asked: Asked, target: int) -> AnyClaim:
    """What somebody asks for, as a claim."""
    if asked.iterations is not None:
        return MissedAt(asked.words, target, asked.iterations, asked.share or 0.0)
    shares = QUANTILES if asked.share is None else (asked.share,)
    return Within(asked.words, (target,), shares, target, shares[-1])


def _with_claims(plan: Plan, claims: list[AnyClaim], settings: OutcomeSettings) -> Plan:
    """The plan with these claims, which share all of epsilon."""
    if not claims:
        raise ConfigurationError(
            f"nothing can be certified from {plan.train_size} instances like those of the pilot: "
            "it takes more of them"
        )
    names = [claim.name for claim in claims]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"the same is claimed twice: {', '.join(names)}")
    ledger = divide(settings.epsilon, {claim.name: claim.weight for claim in claims})
    return dataclasses.replace(plan, claims=tuple(claims), shares=ledger.shares)


def _require(settings: OutcomeSettings, outcomes: Outcomes, whose: str) -> None:
    bad = negative(outcomes)
    if bad.any() and not settings.signed:
        raise ConfigurationError(
            f"{whose} losses are negative (first on instance {int(np.argmax(bad))}): if that is "
            "no mistake, say so in the plan (--signed, signed=True); statements about means need "
            "losses of at least 0"
        )


def _require_planned(plan: OutcomePlan, outcomes: Outcomes) -> None:
    """Refuse outcomes that are not what the plan is for."""
    terms = plan.terms
    if outcomes.size != terms.train_size:
        raise ConfigurationError(
            f"the plan is for {terms.train_size} independent instances, and outcomes have "
            f"{outcomes.size}: leaving instances out, or adding some, depends on what was seen"
        )
    if outcomes.hits != plan.hits:
        kind = ("losses", "hits")[plan.hits]
        raise ConfigurationError(f"the plan is for {kind}")
    _require(plan.settings, outcomes, "the outcomes'")
    goal = any(target.kind == "goal" for target in terms.targets)
    goal |= any(isinstance(claim, GoalMissed | ShareOfGoal) for claim in terms.claims)
    wanted = {"minima (or gaps)": plan.minima and outcomes.minima is None}
    wanted |= {"thresholds": goal and outcomes.thresholds is None}
    wanted |= {f"opponent_{name}": name not in outcomes.opponents for name in terms.opponents}
    missing = [name for name, lacks in wanted.items() if lacks]
    if missing:
        raise ConfigurationError(f"the plan needs {', '.join(missing)}, which outcomes do not have")


def _reworded(statement: Statement, plan: OutcomePlan, outcomes: Outcomes) -> Statement:
    """A statement about the deployed rule, as one about somebody's solver."""
    solver = plan.settings.solver
    text = statement.sentence
    for ours, theirs in {
        "the deployed rule": solver,
        "gradient evaluations": "iterations",
        "what the rule does": f"what {solver} does",
    }.items():
        text = text.replace(ours, theirs)
    if plan.plain_hits:
        least = percent(1 - min(float(rounded_up(statement.value, 3)), 1.0))
        text = (
            f"With confidence {percent(statement.confidence)}, on a new instance the outcome of "
            f"{solver} is a hit with probability at least {least}."
        )
    own = [a for a in statement.assumptions if a not in common_assumptions(plan.terms)]
    details = {k: v for k, v in statement.details.items() if not k.startswith("gradients")}
    return dataclasses.replace(
        statement,
        sentence=text,
        assumptions=[*_assumptions(plan, outcomes), *own],
        details=details,
    )


def _assumptions(plan: OutcomePlan, outcomes: Outcomes) -> list[str]:
    """What nobody but the maker of the outcomes can know."""
    solver, terms = plan.settings.solver, plan.terms
    found = [
        f"the {outcomes.size} instances are independent draws from the distribution that new "
        "instances come from, and none was left out, failures least of all: surestep has seen "
        "neither the instances nor the solver",
        "the plan was fixed, and the solver with all its settings chosen, before anybody had seen "
        "these outcomes: a hash shows which plan it was, not when it was made",
        f"{solver} is used on new instances as it was on these",
        *outcomes.found,
    ]
    if plan.minima:
        found.append("the minima are those of the instances, or lower bounds of them")
    if set(np.diff(terms.iterations)) - {1}:
        found.append(
            "losses are known after the recorded iterations alone: 'stay there' speaks of these"
        )
    if any(isinstance(claim, Sooner | Saving) for claim in terms.claims):
        found.append(
            f"an iteration of {solver} is compared with one of an opponent, whatever they take; an "
            f"opponent that has not arrived after {terms.horizon} is counted as if it had then"
        )
    return found
