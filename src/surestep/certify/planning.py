"""Planning a certificate: every choice is made here, from the prior and validation sets alone."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError
from surestep.bounds.budget import Share, divide
from surestep.bounds.uniform import bet
from surestep.certify.capable import capable
from surestep.certify.claims import (
    EARLIER,
    AnyClaim,
    ClippedLoss,
    GoalMissed,
    LossLevels,
    UserStatistic,
)
from surestep.certify.forms import forecast_basis, tightest
from surestep.certify.pilot import Pilot, pilot_on
from surestep.certify.plan import Plan
from surestep.certify.prior_choices import favourite, prior_lambdas
from surestep.certify.proposals import iterations_until, other_claims
from surestep.certify.settings import CertifySettings
from surestep.certify.subject import Subject
from surestep.certify.targets import Target, targets_of
from surestep.problem import DataSet, PriorSet, StockedProblem
from surestep.rules.base import Rule
from surestep.train import Experiment, Sampled, Task

_WELL_KNOWN = 1.25
"""How many times the mean a bound may be for a second statement about losses."""


def plan_certificate(
    settings: CertifySettings,
    prior: Sampled,
    pilot: Pilot,
    targets: tuple[Target, ...],
    above: str,
    train_size: int,
    kept: tuple[int, ...],
    goal_second_moment: float | None,
    charged: float = 0.0,
    statistics: Sequence[str] = (),
    pool: str = "",
    nonnegative: bool = True,
) -> Plan:
    """Fix all that will be certified, from what the prior's favourite does in the pilot.

    Where losses may be negative, only what needs no bound is claimed. What the pilot's instances
    would say nothing about is not claimed, so its share of epsilon goes to the rest.

    `charged` is what earlier certificates from the same train instances have spent: the ledger
    begins with it, and all statements together, old and new, are false with at most the sum.
    """
    settings.validate()
    if charged + settings.epsilon >= 1:
        raise ConfigurationError(
            f"earlier certificates have spent {charged:g} on these instances: with "
            f"{settings.epsilon:g} more nothing would be certain"
        )
    log_prior = bet(prior.log_prior, favourite(prior, nonnegative), settings.stake)
    weight = float(np.exp(log_prior[favourite(prior, nonnegative)]))
    before = (Share(EARLIER, charged),) if charged else ()
    bare = Plan(
        epsilon=settings.epsilon + charged,
        shares=before,
        horizon=kept[-1],
        iterations=kept,
        train_size=train_size,
        log_prior=tuple(log_prior.tolist()),
        lambdas=tuple(prior_lambdas(settings, prior, train_size, nonnegative).tolist()),
        opponents=pilot.opponents,
        statistics=tuple(statistics),
        pool=pool,
        targets=targets,
        above=above,
        bounded=nonnegative,
        claims=(),
    )
    within, known = iterations_until(settings, pilot, bare, weight)
    if not settings.opponents:
        strongest = pilot.strongest_first(within.headline, kept[-1])[:1]
        bare = dataclasses.replace(bare, opponents=strongest)
    pilot = pilot.against(bare.opponents)
    claims: list[AnyClaim] = [within] if known else []
    claims += other_claims(settings, bare, pilot, within.headline, goal_second_moment)
    claims += [UserStatistic(name, name) for name in statistics]
    names = [claim.name for claim in claims]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"two claims are called {', '.join(map(repr, twice))}: give the statistic another name"
        )
    every = tightest(settings, _with_shares(settings, bare, claims), pilot, weight)
    worth = _worth_claiming(every, pilot, weight)
    # What was given up leaves the others more, for which other bets are best.
    return tightest(settings, _with_shares(settings, bare, worth), pilot, weight)


def pilot_run(
    settings: CertifySettings,
    task: Task,
    experiment: Experiment,
    rule: Rule,
    prior: Sampled,
    prior_set: PriorSet,
    train_size: int,
) -> Pilot:
    """The pilot of an experiment's certificate."""
    few = _first(prior_set, settings.pilot)
    references = references_for(settings, experiment, few)

    def against(opponents: dict[str, Rule]) -> Pilot:
        return pilot_on(
            task,
            rule,
            prior.hypers[favourite(prior, task.problem.nonnegative)],
            opponents,
            _targets(settings, experiment),
            kept_iterations(task.horizon, settings.iterations),
            few,
            references,
            len(prior.hypers),
            train_size,
        )

    everybody = possible_opponents(settings, experiment)
    try:
        return against(everybody)
    except Exception:
        # Whom the user has named is not left out in silence.
        able = everybody if settings.opponents else capable(task, everybody, few)
        if len(able) == len(everybody):
            raise
        return against(able)


def plan_run(
    settings: CertifySettings,
    task: Task,
    experiment: Experiment,
    prior: Sampled,
    pilot: Pilot,
    train_size: int,
    charged: float = 0.0,
    about_data: str | None = None,
    number: int = 0,
) -> Plan:
    """The plan of an experiment's certificate; recorded instances that drift get none.

    Where the train instances are no part of the problem's own data, `about_data` speaks of them.
    `number` is that of the certificate among those of its run.
    """
    pool = experiment.pool if about_data is None else about_data
    if isinstance(task.problem, StockedProblem) and about_data is None:
        task.problem.require_steady()
        pool = pool or task.problem.about_data
    known = settings.closeness and experiment.accuracies.reference is not None
    plan = plan_certificate(
        settings,
        prior,
        pilot,
        _targets(settings, experiment),
        experiment.accuracies.above if known else "",
        train_size,
        kept_iterations(task.horizon, settings.iterations),
        experiment.goal_second_moment,
        charged=charged,
        statistics=list(experiment.statistics),
        pool=pool,
        nonnegative=task.problem.nonnegative,
    )
    subject = Subject(task.goal, task.family, prior.sha256, number)
    return dataclasses.replace(plan, subject=subject)


def _targets(settings: CertifySettings, experiment: Experiment) -> tuple[Target, ...]:
    """Closeness means nothing where losses may be negative and no reference is known."""
    known = experiment.problem.nonnegative or experiment.accuracies.reference is not None
    return targets_of(experiment.accuracies, settings.shares, settings.closeness and known)


def references_for(
    settings: CertifySettings, experiment: Experiment, data: DataSet
) -> Float[np.ndarray, " instance"]:
    """The losses that closeness is counted from; 0 where a certificate does not speak of it."""
    return experiment.references(data) if settings.closeness else np.zeros(data.size)


def possible_opponents(settings: CertifySettings, experiment: Experiment) -> dict[str, Rule]:
    """The baselines that the learned rule may be certified against; the plan names those it is.

    A race has put the strongest first. Others show in the pilot who it is.
    """
    if not settings.compared:
        return {}
    known = tuple(experiment.baselines)
    return experiment.chosen(settings.opponents or (known[:1] if experiment.race else known))


def _first(data: PriorSet, number: int) -> PriorSet:
    """The first instances of a prior set."""
    if data.size <= number:
        return data
    minima = None if data.minima is None else data.minima[:number]
    return dataclasses.replace(data, thetas=data.part(0, number), minima=minima)


def _worth_claiming(plan: Plan, pilot: Pilot, weight: float) -> list[AnyClaim]:
    """The claims that would say something if the train set looked like the pilot.

    How often the goal is missed is always claimed: it is what the rule was accepted for. So are
    losses, of which every report shows something. The loss itself is claimed beside its distance
    from the minimum only if its mean will be known well.
    """
    basis = forecast_basis(plan, pilot, weight)

    def worth(claim: AnyClaim) -> bool:
        levels = isinstance(claim, LossLevels) and bool(claim.tolerances)
        if levels or isinstance(claim, GoalMissed | UserStatistic):
            return True
        statement = claim.statement(basis)
        if isinstance(claim, ClippedLoss) and claim.counted == "loss":
            mean = claim.number(float(claim.means(basis.terms, basis.evidence)[0, 0]))
            return statement.value <= _WELL_KNOWN * mean
        return claim.says_something(statement)

    return [claim for claim in plan.claims if worth(claim)]


def _with_shares(settings: CertifySettings, bare: Plan, claims: list[AnyClaim]) -> Plan:
    """A plan of these claims; what they may spend is in proportion to their weights."""
    weights = dict(settings.weights)
    ledger = divide(
        settings.epsilon, {claim.name: weights.get(claim.kind, claim.weight) for claim in claims}
    )
    return dataclasses.replace(bare, claims=tuple(claims), shares=(*bare.shares, *ledger.shares))


def kept_iterations(horizon: int, number: int) -> tuple[int, ...]:
    """About `number` iterations from 0 to the horizon, evenly spaced, both ends among them."""
    return tuple(sorted({round(i * horizon / number) for i in range(number + 1)}))
