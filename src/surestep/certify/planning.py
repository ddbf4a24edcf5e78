"""Planning a certificate: every choice is made here, from the prior and validation sets alone."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from surestep.base.errors import ConfigurationError
from surestep.base.lazy import slow_import
from surestep.bounds.budget import Share, divide
from surestep.bounds.family import geometric_lambdas
from surestep.bounds.uniform import bet
from surestep.certify.certificate import rounded_up
from surestep.certify.claims import (
    EARLIER,
    Advantage,
    AnyClaim,
    Better,
    ClippedLoss,
    Faster,
    GoalMissed,
    LossLevels,
    LossWhereReached,
    ShareOfGoal,
    Sooner,
    UserStatistic,
)
from surestep.certify.plan import Plan
from surestep.problem import PriorSet, StockedProblem, reached
from surestep.rules.base import Rule
from surestep.train import Experiment, Sampled, Task, mean_square

QUANTILES = (0.5, 0.8, 0.9, 0.95)
"""Shares of new instances for which a loss is certified at every iteration of the plan."""


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
    """Baselines to certify the learned rule against; none named means the problem's first."""
    compared: bool = True
    """Whether it is certified against any."""

    def validate(self) -> None:
        """Refuse sizes that cannot work."""
        if not 0 < self.epsilon < 1:
            raise ConfigurationError(
                f"certify.epsilon must lie strictly between 0 and 1, not {self.epsilon}"
            )
        for name in ("lambdas", "iterations", "levels", "level_iterations"):
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
        if self.form not in ("chernoff", "pac-bayes-kl"):
            raise ConfigurationError("certify.form must be chernoff or pac-bayes-kl")


def plan_certificate(
    settings: CertifySettings,
    horizon: int,
    prior: Sampled,
    start_losses: Float[np.ndarray, " instance"],
    train_size: int,
    opponents: Sequence[str],
    goal_second_moment: float | None,
    charged: float = 0.0,
    statistics: Sequence[str] = (),
    pool: str = "",
    nonnegative: bool = True,
) -> Plan:
    """Fix all that will be certified. `start_losses` are the prior set's, at the start.

    Where losses may be negative, only what needs no bound is claimed.

    `charged` is what earlier certificates from the same train instances have spent: the ledger
    begins with it, and all statements together, old and new, are false with at most the sum.
    """
    settings.validate()
    if charged + settings.epsilon >= 1:
        raise ConfigurationError(
            f"earlier certificates have spent {charged:g} on these instances: with "
            f"{settings.epsilon:g} more nothing would be certain"
        )
    kept = kept_iterations(horizon, settings.iterations)
    if nonnegative:
        claims = _claims(
            settings, horizon, prior, start_losses, opponents, goal_second_moment, kept
        )
    else:
        claims = _claims_without_bound(settings, horizon, prior, start_losses, opponents, kept)
    claims += [UserStatistic(name, name, form=settings.form) for name in statistics]
    names = [claim.name for claim in claims]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"two claims are called {', '.join(map(repr, twice))}: give the statistic another name"
        )
    ledger = divide(settings.epsilon, {claim.name: claim.weight for claim in claims})
    before = (Share(EARLIER, charged),) if charged else ()
    log_prior = bet(prior.log_prior, favourite(prior, nonnegative), settings.stake)
    return Plan(
        epsilon=settings.epsilon + charged,
        shares=(*before, *ledger.shares),
        horizon=horizon,
        iterations=kept,
        train_size=train_size,
        log_prior=tuple(log_prior.tolist()),
        lambdas=tuple(prior_lambdas(settings, prior, train_size, nonnegative).tolist()),
        opponents=tuple(opponents),
        statistics=tuple(statistics),
        pool=pool,
        claims=tuple(claims),
    )


def plan_run(
    settings: CertifySettings,
    task: Task,
    experiment: Experiment,
    prior: Sampled,
    prior_set: PriorSet,
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
    return plan_certificate(
        settings,
        task.horizon,
        prior,
        task.start_losses(prior_set),
        train_size,
        list(choose_opponents(settings, experiment)),
        experiment.goal_second_moment,
        charged=charged,
        statistics=list(experiment.statistics),
        pool=pool,
        nonnegative=task.problem.nonnegative,
    )


def choose_opponents(settings: CertifySettings, experiment: Experiment) -> dict[str, Rule]:
    """The baselines that the learned rule is certified against."""
    if not settings.compared:
        return {}
    return experiment.chosen(settings.opponents or tuple(experiment.baselines)[:1])


def _claims(
    settings: CertifySettings,
    horizon: int,
    prior: Sampled,
    start_losses: Float[np.ndarray, " instance"],
    opponents: Sequence[str],
    goal_second_moment: float | None,
    kept: tuple[int, ...],
) -> list[AnyClaim]:
    claims: list[AnyClaim] = [
        GoalMissed("missing the goal"),
        ShareOfGoal("share of the goal", form=settings.form),
        ClippedLoss(
            "loss, clipped", _short(_positive(prior.prior_thresholds.max())), form=settings.form
        ),
        LossLevels(
            "losses over iterations",
            iterations=_level_iterations(settings, horizon, kept),
            tolerances=_tolerances(settings, prior, start_losses),
            quantiles=QUANTILES,
        ),
    ]
    if goal_second_moment is not None:
        claims.append(LossWhereReached("loss where the goal is reached", goal_second_moment))
    target = _short(_positive(np.median(prior.prior_thresholds)))
    for name in opponents:
        claims += [
            Faster(f"faster than {name}", name, target),
            Advantage(f"advantage over {name}", name, form=settings.form),
        ]
    return claims


def _claims_without_bound(
    settings: CertifySettings,
    horizon: int,
    prior: Sampled,
    start_losses: Float[np.ndarray, " instance"],
    opponents: Sequence[str],
    kept: tuple[int, ...],
) -> list[AnyClaim]:
    """Claims whose values are 0 or 1, whatever losses are: they compare, and measure nothing."""
    best = prior.prior_losses[favourite(prior, nonnegative=False)]
    ended = best[np.isfinite(best)]
    high = float(np.median(start_losses))
    low = min(high, float(np.quantile(ended, 0.05))) if ended.size else high
    claims: list[AnyClaim] = [
        GoalMissed("missing the goal"),
        LossLevels(
            "losses over iterations",
            iterations=_level_iterations(settings, horizon, kept),
            tolerances=tuple(np.unique(np.linspace(high, low, settings.levels))[::-1].tolist()),
            quantiles=QUANTILES,
        ),
    ]
    # Two who have both arrived differ by rounding, which is nobody's merit.
    gained = float(np.median(start_losses - best))
    slack = _short(1e-6 * gained) if np.isfinite(gained) and gained > 0 else 0.0
    for name in opponents:
        claims += [
            Sooner(f"sooner than {name}", name),
            Better(f"better than {name}", name, slack),
        ]
    return claims


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
    settings: CertifySettings, prior: Sampled, start_losses: Float[np.ndarray, " instance"]
) -> tuple[float, ...]:
    """Losses in geometric progression, from what the start is down to what may be reached."""
    losses = prior.prior_losses[favourite(prior)]
    positive = losses[np.isfinite(losses) & (losses > 0)]
    high = _positive(np.median(start_losses))
    low = float(np.quantile(positive, 0.05)) if positive.size else high
    low = min(max(low, 1e-30), high)
    return tuple(float(t) for t in np.geomspace(high, low, settings.levels))


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
