"""Planning a certificate: every choice is made here, from the prior and validation sets alone."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError, unknown
from surestep.base.lazy import slow_import
from surestep.bounds.budget import Share, divide
from surestep.bounds.family import geometric_lambdas
from surestep.bounds.uniform import bet, most_above
from surestep.certify.certificate import rounded_up
from surestep.certify.claims import (
    EARLIER,
    KINDS,
    Advantage,
    AnyClaim,
    Basis,
    Better,
    ClippedLoss,
    GoalMissed,
    LossLevels,
    LossWhereReached,
    Saving,
    ShareOfGoal,
    Sooner,
    UserStatistic,
    Within,
)
from surestep.certify.evidence import reached_in
from surestep.certify.pilot import Pilot, pilot_on
from surestep.certify.plan import Plan
from surestep.certify.targets import ITERATIONS, Target, targets_of
from surestep.problem import DataSet, PriorSet, StockedProblem, reached
from surestep.rules.base import Rule
from surestep.train import Experiment, Sampled, Task, mean_square

QUANTILES = (0.5, 0.8, 0.9, 0.95)
"""Shares of new instances for which a loss is certified at every iteration of the plan."""

_ITERATIONS_UNTIL = "iterations until"
_PAIR = 0.02  # about the part of epsilon that a pair of target and share has


@dataclasses.dataclass(frozen=True)
class CertifySettings:
    """What is certified, and how surely."""

    epsilon: float = 0.05
    """The probability with which any of the certificate's rigorous statements may be false."""
    lambdas: int = 200
    """How many values of lambda the paper's bound is minimised over; it pays the logarithm."""
    lambda_ratio: float = 100.0
    """The set of lambda reaches from its centre divided by this to its centre times this."""
    iterations: int = 36
    """At about how many iterations up to the horizon the train losses are kept."""
    stake: float = 0.9
    """The prior weight bet on the sample that did best on the prior set."""
    form: Literal["chernoff", "pac-bayes-kl"] = "chernoff"
    """The bound for values between 0 and 1; values that are 0 or 1 get the exact one."""
    levels: int = 24
    """How many losses are certified to be reached, from the start's down to the smallest."""
    level_iterations: int = 4
    """At how many of the iterations they are certified."""
    opponents: tuple[str, ...] = ()
    """Baselines to certify the learned rule against; none named means the strongest on the prior
    set."""
    compared: bool = True
    """Whether it is certified against any."""
    closeness: bool = True
    """Whether it says how close solves come to the minima, or to what else accuracies are counted
    from. These are computed for the prior and the train set then."""
    shares: tuple[float, ...] = (1e-2, 1e-4, 1e-6)
    """How close, as shares of what lies between start and minimum."""
    pilot: int = 250
    """On how many prior instances the plan forecasts what a claim will say."""
    weights: tuple[tuple[str, float], ...] = ()
    """Which kinds of claims are given which part of epsilon, for example `goal 2 within 4`; what is
    not named has its usual weight."""

    def validate(self) -> None:
        """Refuse sizes that cannot work."""
        if not 0 < self.epsilon < 1:
            raise ConfigurationError(
                f"certify.epsilon must lie strictly between 0 and 1, not {self.epsilon}"
            )
        for name in ("lambdas", "iterations", "levels", "level_iterations", "pilot"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"certify.{name} must be at least 1")
        if not self.lambda_ratio > 1:
            raise ConfigurationError("certify.lambda_ratio must be above 1")
        if not 0 <= self.stake < 1:
            raise ConfigurationError(f"certify.stake must lie in [0, 1), not {self.stake}")
        if self.opponents and not self.compared:
            raise ConfigurationError(
                "certify.opponents names opponents, and certify.compared says that there are none"
            )
        if not all(0 < share < 1 for share in self.shares):
            raise ConfigurationError(
                f"certify.shares must lie strictly between 0 and 1, not {self.shares}"
            )
        for kind, weight in self.weights:
            if kind not in KINDS:
                raise ConfigurationError(unknown("kind of claim", kind, KINDS))
            if not weight > 0:
                raise ConfigurationError(
                    f"certify.weights must be positive, not {weight} for {kind!r}"
                )
        if self.form not in ("chernoff", "pac-bayes-kl"):
            raise ConfigurationError("certify.form must be chernoff or pac-bayes-kl")


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
    within, known = _within(settings, pilot, bare, weight)
    if not settings.opponents:
        strongest = pilot.strongest_first(within.headline, kept[-1])[:1]
        bare = dataclasses.replace(bare, opponents=strongest)
    pilot = pilot.against(bare.opponents)
    claims: list[AnyClaim] = [within] if known else []
    claims += _claims(settings, bare, pilot, within.headline, goal_second_moment)
    claims += [UserStatistic(name, name, form=settings.form) for name in statistics]
    names = [claim.name for claim in claims]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"two claims are called {', '.join(map(repr, twice))}: give the statistic another name"
        )
    worth = _worth_claiming(settings, bare, claims, pilot, weight)
    return _with_shares(settings, bare, worth)


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
    return pilot_on(
        task,
        rule,
        prior.hypers[favourite(prior, task.problem.nonnegative)],
        possible_opponents(settings, experiment),
        _targets(settings, experiment),
        kept_iterations(task.horizon, settings.iterations),
        few,
        references_for(settings, experiment, few),
        len(prior.hypers),
        train_size,
    )


def plan_run(
    settings: CertifySettings,
    task: Task,
    experiment: Experiment,
    prior: Sampled,
    pilot: Pilot,
    train_size: int,
    charged: float = 0.0,
    about_data: str | None = None,
) -> Plan:
    """The plan of an experiment's certificate; recorded instances that drift get none.

    Where the train instances are no part of the problem's own data, `about_data` speaks of them.
    """
    pool = experiment.pool if about_data is None else about_data
    if isinstance(task.problem, StockedProblem) and about_data is None:
        task.problem.require_steady()
        pool = pool or task.problem.about_data
    known = settings.closeness and experiment.accuracies.reference is not None
    return plan_certificate(
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


def _within(
    settings: CertifySettings, pilot: Pilot, terms: Plan, weight: float
) -> tuple[Within, bool]:
    """The claim about iterations, of what will probably be certified; and whether anything will.

    Its headline is the hardest target that is reached by as large a share as can be certified.
    """
    level = settings.epsilon * weight * _PAIR
    every = tuple(range(len(terms.targets)))
    seen = pilot.forecast(terms.train_size).reach[0]
    ranked = np.sort([reached_in(seen, ITERATIONS, t) for t in every], axis=1)
    possible: dict[float, dict[int, float]] = {}
    for share in QUANTILES:
        above = most_above(terms.train_size, share, (level,))[0]
        needed = ranked[:, terms.train_size - 1 - max(above, 0)]
        possible[share] = {t: needed[t] for t in every if above >= 0 and np.isfinite(needed[t])}
    shares = tuple(share for share in QUANTILES if possible[share])
    if not shares:
        easiest = max(every, key=lambda t: int(np.isfinite(ranked[t]).sum()))
        return Within(_ITERATIONS_UNTIL, every, QUANTILES, easiest, QUANTILES[0]), False
    targets = tuple(possible[shares[0]])
    best = possible[shares[-1]]
    headline = max(best, key=lambda t: (best[t], t))
    return Within(_ITERATIONS_UNTIL, targets, shares, headline, shares[-1]), True


def _claims(
    settings: CertifySettings,
    terms: Plan,
    pilot: Pilot,
    headline: int,
    goal_second_moment: float | None,
) -> list[AnyClaim]:
    """All else that could be claimed, the most important first."""
    close = terms.targets[headline].kind != "goal"
    evidence = pilot.evidence
    claims: list[AnyClaim] = [
        GoalMissed("missing the goal"),
        _levels(settings, terms, pilot),
    ]
    if close:
        at = _level_iterations(settings, terms.horizon, terms.iterations)
        claims.append(LossLevels("share left", at, (), QUANTILES, counted="left"))
    if close or terms.bounded:
        ends = evidence.above(evidence.final)[0]
        claims.append(ClippedLoss("loss, clipped", _clip(ends), form=settings.form))
    if terms.bounded:
        claims.append(ShareOfGoal("share of the goal", form=settings.form))
        if goal_second_moment is not None:
            claims.append(LossWhereReached("loss where the goal is reached", goal_second_moment))
    for name in terms.opponents:
        claims += [
            Sooner(f"sooner than {name}", name, headline),
            Saving(f"saving over {name}", name, headline, form=settings.form),
        ]
        if close or terms.bounded:
            floor = _floor(terms, pilot)
            claims.append(Advantage(f"advantage over {name}", name, floor, form=settings.form))
        else:
            # Two who have both arrived differ by rounding, which is nobody's merit.
            gained = float(np.median(evidence.starts - evidence.final[0]))
            slack = _short(1e-6 * gained) if np.isfinite(gained) and gained > 0 else 0.0
            claims.append(Better(f"better than {name}", name, slack))
    return claims


def _levels(settings: CertifySettings, terms: Plan, pilot: Pilot) -> LossLevels:
    """Losses over the iterations, counted from the references where there are some."""
    counted = "above" if terms.above else "loss"
    evidence = pilot.evidence
    starts, ends = evidence.starts, evidence.final[0]
    if terms.above:
        starts, ends = evidence.above(starts), evidence.above(ends)
    tolerances = (
        _tolerances(settings, ends, starts)
        if terms.above or terms.bounded
        else _even_tolerances(settings, ends, starts)
    )
    return LossLevels(
        "losses over iterations",
        iterations=_level_iterations(settings, terms.horizon, terms.iterations),
        tolerances=tolerances,
        quantiles=QUANTILES,
        counted=counted,
    )


def _worth_claiming(
    settings: CertifySettings,
    bare: Plan,
    claims: list[AnyClaim],
    pilot: Pilot,
    weight: float,
) -> list[AnyClaim]:
    """The claims that would say something if the train set looked like the pilot.

    How often the goal is missed is always claimed: it is what the rule was accepted for. So are
    losses, of which every report shows something.
    """
    planned = _with_shares(settings, bare, claims)
    # The favourite alone, at the level that its weight leaves it.
    terms = dataclasses.replace(
        planned,
        log_prior=(0.0,),
        shares=tuple(Share(one.name, one.epsilon * weight) for one in planned.shares),
    )
    basis = Basis(terms, pilot.forecast(bare.train_size), np.zeros(1), 0)

    def needed(claim: AnyClaim) -> bool:
        levels = isinstance(claim, LossLevels) and bool(claim.tolerances)
        return levels or isinstance(claim, GoalMissed | UserStatistic)

    return [c for c in claims if needed(c) or c.says_something(c.statement(basis))]


def _with_shares(settings: CertifySettings, bare: Plan, claims: list[AnyClaim]) -> Plan:
    """A plan of these claims; what they may spend is in proportion to their weights."""
    weights = dict(settings.weights)
    ledger = divide(
        settings.epsilon, {claim.name: weights.get(claim.kind, claim.weight) for claim in claims}
    )
    return dataclasses.replace(bare, claims=tuple(claims), shares=(*bare.shares, *ledger.shares))


def _clip(losses: Float[np.ndarray, " instance"]) -> float:
    """Where losses are clipped: above all that the pilot has shown."""
    finite = losses[np.isfinite(losses)]
    return _short(_positive(finite.max() if finite.size else 1.0))


def _floor(terms: Plan, pilot: Pilot) -> float:
    """Below which nobody counts a loss as smaller: the finest accuracy, if there are references."""
    if not terms.above:
        return 0.0
    evidence = pilot.evidence
    levels = [
        float(np.median(t.levels(evidence.references, evidence.starts, evidence.thresholds)
                        - evidence.references))
        for t in terms.targets
    ]  # fmt: skip
    return _short(_positive(min(levels)))


def _level_iterations(
    settings: CertifySettings, horizon: int, kept: tuple[int, ...]
) -> tuple[int, ...]:
    """The iterations at which losses are certified, evenly spaced, the horizon among them."""
    number = settings.level_iterations
    wanted = [round((i + 1) * horizon / number) for i in range(number)]
    return tuple(sorted({min(kept, key=lambda k, w=w: abs(k - w)) for w in wanted} - {0}))


def favourite(prior: Sampled, nonnegative: bool = True) -> int:
    """The sample to bet on: smallest losses on the prior set, on a logarithmic scale.

    Every miss weighs as much as all losses being ten times larger. Where losses may be negative,
    samples are ranked on every instance, and a miss weighs more than any rank. Betting decides how
    tight certificates are, never whether they hold.
    """
    misses = np.sum(~reached(prior.prior_losses, prior.prior_thresholds), axis=1)
    if not nonnegative:
        ranks = (
            slow_import("scipy.stats")
            .rankdata(prior.prior_losses, method="min", axis=0)
            .mean(axis=1)
        )
        return int(np.argmin(misses + (ranks - 1) / len(ranks)))
    sizes = np.mean(np.log10(np.clip(prior.prior_losses, 1e-30, 1e30)), axis=1)
    return int(np.argmin(sizes + misses))


def _tolerances(
    settings: CertifySettings,
    ends: Float[np.ndarray, " instance"],
    starts: Float[np.ndarray, " instance"],
) -> tuple[float, ...]:
    """Losses in geometric progression, from what the start is down to what may be reached."""
    positive = ends[np.isfinite(ends) & (ends > 0)]
    high = _positive(np.median(starts))
    low = float(np.quantile(positive, 0.05)) if positive.size else high
    low = min(max(low, 1e-30), high)
    return tuple(float(t) for t in np.geomspace(high, low, settings.levels))


def _even_tolerances(
    settings: CertifySettings,
    ends: Float[np.ndarray, " instance"],
    starts: Float[np.ndarray, " instance"],
) -> tuple[float, ...]:
    """Losses of any sign, evenly spaced."""
    ended = ends[np.isfinite(ends)]
    high = float(np.median(starts))
    low = min(high, float(np.quantile(ended, 0.05))) if ended.size else high
    return tuple(np.unique(np.linspace(high, low, settings.levels))[::-1].tolist())


def _positive(value: float) -> float:
    """Where a scale is needed and the prior set has none to offer, 1 serves."""
    return float(value) if np.isfinite(value) and value > 0 else 1.0


def _short(value: float) -> float:
    """A number that is printed in full with three digits, a little above another."""
    return float(rounded_up(value, 3))


def prior_lambdas(
    settings: CertifySettings, prior: Sampled, size: int, nonnegative: bool = True
) -> Float[np.ndarray, " lambda"]:
    """A geometric set around the lambda that would be best if the prior set were the train set.

    Where losses may be negative the posterior weighs misses, whose second moment is at most 1.
    """
    good = reached(prior.prior_losses, prior.prior_thresholds)
    squares = mean_square(prior.prior_thresholds, good)
    weights = np.exp(prior.log_prior)
    # What has no weight does not count, even where it is infinite.
    moments = np.where(weights > 0, squares / prior.probabilities**2, 0.0)
    moment = float(weights @ moments)
    moment = moment if nonnegative else 1.0
    price = np.log(settings.lambdas / settings.epsilon)
    with np.errstate(over="ignore"):
        centre = np.sqrt(2 * size * price / moment) if 0 < moment < np.inf else 1.0
    # Squares of lambdas must be numbers, too.
    centre = np.clip(centre, 1e-140, 1e140)
    return geometric_lambdas(float(centre), settings.lambda_ratio, settings.lambdas)


def kept_iterations(horizon: int, number: int) -> tuple[int, ...]:
    """About `number` iterations from 0 to the horizon, evenly spaced, both ends among them."""
    return tuple(sorted({round(i * horizon / number) for i in range(number + 1)}))
