"""The audit: are certificates false as rarely as they say?

Families with finitely many kinds of instances have exactly known truths: every expectation is a
finite sum. Data sets are drawn from them again and again, the real path from evidence to
statements is run on each, and the share of false statements is compared with their epsilon.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import stats

from surestep.bounds import geometric_lambdas, normalised
from surestep.bounds.budget import divide
from surestep.bounds.uniform import bet
from surestep.certify.audited_traits import claims_by_trait, known_traits, made_traits
from surestep.certify.certificate import Statement
from surestep.certify.claims import (
    Advantage,
    AnyClaim,
    Asserted,
    Better,
    ClippedLoss,
    GoalMissed,
    LossLevels,
    LossWhereReached,
    MissedAt,
    Saving,
    ShareOfGoal,
    Sooner,
    Truth,
    UserStatistic,
    Within,
)
from surestep.certify.claims.base import BoundedClaim
from surestep.certify.evidence import Evidence, reach_of_paths
from surestep.certify.forms import forecast_basis, in_form, tightest
from surestep.certify.pilot import Pilot
from surestep.certify.plan import Plan
from surestep.certify.posterior import find_posterior
from surestep.certify.proposals import QUANTILES
from surestep.certify.settings import CertifySettings
from surestep.certify.statements import rigorous_statements
from surestep.certify.targets import Target
from surestep.problem import reached
from surestep.train import Sampled

ITERATIONS = (0, 5, 10)
BY_BETTING = ", betting"
"""How the names of claims end whose means are bounded by betting."""
BY_PILOT = "loss, clipped by the pilot"


@dataclasses.dataclass(frozen=True)
class AuditFamily:
    """A distribution over finitely many kinds of instances, and what every sample does on each."""

    name: str
    chances: Float[np.ndarray, " kind"]
    table: Evidence
    """One entry for every kind, in the place of instances."""
    log_prior: Float[np.ndarray, " sample"]
    tolerances: tuple[float, ...]
    targets: tuple[Target, ...]
    """Of which the last is compared with the opponent."""
    constant: float
    """Where losses are clipped; if they may be negative: how far above the opponent's they may be.
    """
    nonnegative: bool = True
    edge: float = 0.0
    """The prediction that divides easy from hard instances."""
    betting: bool = True
    """Whether means are bounded by betting, too."""

    @property
    def second_moment(self) -> float:
        """`E[g^2]`, exactly."""
        return float(self.chances @ self.table.thresholds**2)

    def plan(self, size: int, epsilon: float) -> Plan:
        """All claims there are, with the shares of a real run."""
        claims = self._claims() if self.nonnegative else self._claims_without_bound()
        if self.betting:
            bounded = [c for c in claims if isinstance(c, BoundedClaim) and c.form == "chernoff"]
            claims += tuple(dataclasses.replace(c, name=c.name + BY_BETTING) for c in bounded)
            claims += (ClippedLoss(BY_PILOT, self.constant),)
        moment = self.second_moment if self.nonnegative else 1.0
        centre = np.sqrt(2 * size * np.log(20 / epsilon) / moment)
        plain = Plan(
            epsilon=epsilon,
            shares=divide(epsilon, {claim.name: claim.weight for claim in claims}).shares,
            horizon=ITERATIONS[-1],
            iterations=ITERATIONS,
            train_size=size,
            log_prior=tuple(bet(self.log_prior, 0, 0.5).tolist()),
            lambdas=tuple(geometric_lambdas(float(centre), 10.0, 20).tolist()),
            opponents=("other",),
            statistics=("own",),
            pool="",
            targets=self.targets,
            above="the reference",
            bounded=self.nonnegative,
            traits=known_traits(len(self.targets) - 1),
            claims=claims,
        )
        return self._bet_on(plain) if self.betting else plain

    def _bet_on(self, plain: Plan) -> Plan:
        """Bets, and where a loss is clipped, are chosen as in a run: on instances of their own."""
        size, weight = plain.train_size, float(np.exp(plain.log_prior[0]))
        pilot = Pilot(self.draw(np.random.default_rng(12), size).of(slice(0, 1)), ("other",))
        basis = forecast_basis(plain, pilot, weight)
        settings = CertifySettings(form="betting")

        def settled(claim: AnyClaim) -> AnyClaim:
            if isinstance(claim, BoundedClaim) and claim.name.endswith(BY_BETTING):
                return in_form("betting", claim, basis, pilot.evidence)
            if claim.name == BY_PILOT:
                alone = dataclasses.replace(plain, claims=(claim,))
                return tightest(settings, alone, pilot, weight).claims[0]
            return claim

        return dataclasses.replace(plain, claims=tuple(settled(claim) for claim in plain.claims))

    def _claims(self) -> tuple[AnyClaim, ...]:
        last = len(self.targets) - 1
        return (
            self._within(),
            GoalMissed("missing the goal"),
            ShareOfGoal("share of the goal"),
            ShareOfGoal("share of the goal, kl", form="pac-bayes-kl"),
            ClippedLoss("loss, clipped", self.constant),
            ClippedLoss("loss itself, clipped", 2 * self.constant, counted="loss"),
            self._levels(),
            self._levels("left"),
            MissedAt("asked for", 0, ITERATIONS[1]),
            LossWhereReached("sublevel", self.second_moment),
            Sooner("sooner", "other", last),
            Saving("saving", "other", last),
            Advantage("advantage", "other", 1e-3),
            UserStatistic("the user's own", "own"),
            *claims_by_trait(last, self.edge, QUANTILES[:3]),
        )

    def _claims_without_bound(self) -> tuple[AnyClaim, ...]:
        last = len(self.targets) - 1
        return (
            self._within(),
            GoalMissed("missing the goal"),
            self._levels(),
            self._levels("left"),
            MissedAt("asked for", 0, ITERATIONS[1]),
            ClippedLoss("loss, clipped", 1.0),
            Sooner("sooner", "other", last),
            Saving("saving", "other", last),
            Better("better", "other", self.constant),
            UserStatistic("the user's own", "own"),
            *claims_by_trait(last, self.edge, QUANTILES[:3]),
        )

    def _within(self) -> Within:
        every = tuple(range(len(self.targets)))
        return Within("iterations until", every, QUANTILES, every[-1], QUANTILES[0])

    def _levels(self, counted: Literal["above", "left"] = "above") -> LossLevels:
        return LossLevels(
            "losses over iterations" if counted == "above" else "share left",
            iterations=ITERATIONS[1:],
            tolerances=self.tolerances if counted == "above" else (),
            quantiles=QUANTILES,
            counted=counted,
        )

    @property
    def prior(self) -> Sampled:
        """The prior as the stages hand it on; what the paper's bound plugs in does not matter."""
        losses, threshold = self.table.final, self.table.thresholds
        success = np.maximum(reached(losses, threshold) @ self.chances, 1e-3)
        return Sampled.given(np.zeros((len(losses), 1)), success, losses, threshold, self.log_prior)

    def draw(self, random: np.random.Generator, size: int) -> Evidence:
        """A train set's evidence: `size` independent instances."""
        return self.table.on(random.choice(len(self.chances), size, p=self.chances))


def _family(
    name: str,
    chances: np.ndarray,
    losses: np.ndarray,
    thresholds: np.ndarray,
    opponent: np.ndarray,
    targets: tuple[Target, ...],
    constant: float,
    references: np.ndarray | None = None,
    nonnegative: bool = True,
) -> AuditFamily:
    """Fill in when targets are reached (one gradient an iteration) from losses at all iterations.

    Losses on all kinds, of all samples; references are 0 where there are none.
    """
    references = np.zeros(len(thresholds)) if references is None else references
    starts = losses[0, :, 0]
    levels = np.stack([t.levels(references, starts, thresholds) for t in targets], axis=1)
    needed = reach_of_paths(losses[0], levels)[:, len(targets) - 1]
    traits = made_traits(needed, ITERATIONS[-1])
    table = Evidence(
        traits=traits,
        losses=losses[:, :, list(ITERATIONS)],
        thresholds=thresholds,
        references=references,
        starts=starts,
        reach=reach_of_paths(losses, levels),
        opponent_losses=opponent[None, :, ITERATIONS[-1]],
        opponent_reach=reach_of_paths(opponent, levels)[None],
        # A user's statistic: the last loss, cut off and scaled.
        statistics=np.clip(losses[:, :, -1:], 0.0, 0.3) / 0.3,
    )
    ends = np.maximum(losses[:, :, 1:] - references[:, None], 0.0)
    spread = np.quantile(ends, [0.1, 0.4, 0.7, 0.95], method="nearest")
    return AuditFamily(
        name=name,
        chances=chances / chances.sum(),
        table=table,
        log_prior=normalised(np.linspace(0.0, -1.0, len(losses))),
        tolerances=tuple(sorted({float(v) for v in spread if np.isfinite(v)}, reverse=True)),
        targets=targets,
        constant=constant,
        nonnegative=nonnegative,
        edge=float(np.median(traits[:, 0])),
    )


def scalar_quadratics() -> AuditFamily:
    """Gradient descent on `theta x^2 / 2` from 1, theta uniform on a grid; long steps diverge."""
    theta = np.linspace(0.5, 4.0, 400)
    steps = np.array([0.3, 0.45, 0.52, 0.6, 0.75])
    k = np.arange(ITERATIONS[-1] + 1)

    def paths(step: float) -> np.ndarray:
        return 0.5 * theta[:, None] * (1 - step * theta[:, None]) ** (2 * k)

    losses = np.stack([paths(step) for step in steps])
    thresholds = 0.2 * (0.5 * theta) ** 0.5
    return _family("scalar quadratics", np.ones(400), losses, thresholds, paths(0.25),
                   (Target("start", 0.3), Target("loss", 0.05)), 0.5)  # fmt: skip


def bernoulli_failures(samples: int = 40, chance: float = 0.1) -> AuditFamily:
    """Samples that fail independently of each other, each with its own small probability."""
    random = np.random.default_rng(0)
    kinds = 4000
    failed = random.random((samples, kinds)) < np.linspace(chance, 3 * chance, samples)[:, None]
    k = np.arange(ITERATIONS[-1] + 1)
    good, bad = 0.5**k, np.where(k == 0, 1.0, np.inf)
    losses = np.where(failed[:, :, None], bad, good)
    opponent = np.broadcast_to(0.6**k, (kinds, k.size))
    return _family(
        "Bernoulli failures",
        np.ones(kinds),
        losses,
        np.full(kinds, 0.1),
        opponent,
        (Target("start", 0.4), Target("loss", 0.2)),
        1.0,
    )


def heavy_tails(samples: int = 8) -> AuditFamily:
    """Losses whose tail falls like a power of 1.1 of their size, cut off far out."""
    random = np.random.default_rng(1)
    kinds = 4000
    scale = np.stack(
        [random.permutation((np.arange(kinds) + 0.5) / kinds) ** (-1 / 1.1) for _ in range(samples)]
    )
    k = np.arange(ITERATIONS[-1] + 1)
    losses = (
        0.01 * scale[:, :, None] * (1 + 1 / (1 + k)) * np.linspace(1, 2, samples)[:, None, None]
    )
    opponent = 0.03 * np.outer(random.permutation(scale[0]), 1 + 1 / (1 + k))
    # Half of what the best sample reaches at last is a reference like any other.
    references = 0.5 * losses.min(axis=(0, 2))
    return _family(
        "heavy tails", np.ones(kinds), losses, np.full(kinds, 0.5), opponent,
        (Target("reference", 2.5), Target("loss", 0.05)), 1.0, references,
    )  # fmt: skip


def negative_minima() -> AuditFamily:
    """Gradient descent on `theta x^2 / 2 - b x` from 1: minima of `-b^2 / (2 theta)`."""
    theta, b = (one.ravel() for one in np.meshgrid(np.linspace(0.5, 4, 40), np.linspace(-3, 3, 20)))
    k = np.arange(ITERATIONS[-1] + 1)

    def paths(step: float) -> np.ndarray:
        least, away = -0.5 * b**2 / theta, 1 - b / theta
        gap = 0.5 * theta[:, None] * away[:, None] ** 2 * (1 - step * theta[:, None]) ** (2 * k)
        return least[:, None] + gap

    losses = np.stack([paths(step) for step in (0.3, 0.45, 0.52)])
    thresholds = losses[0, :, 0] - 0.13 * (theta - b) ** 2
    return _family(
        "negative minima", np.ones(theta.size), losses, thresholds, paths(0.35),
        (Target("start", 0.05), Target("goal")), 1e-3, -0.5 * b**2 / theta, False,
    )  # fmt: skip


FAMILIES: Mapping[str, Callable[[], AuditFamily]] = {
    "scalar quadratics": scalar_quadratics,
    "Bernoulli failures": bernoulli_failures,
    "heavy tails": heavy_tails,
    "negative minima": negative_minima,
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How often a statement was false, of so many repeats, for the epsilon it was given."""

    family: str
    statement: str
    false: int
    repeats: int
    epsilon: float
    looseness: float
    """The bound's mean distance from the truth, in the statement's units."""

    @property
    def p_value(self) -> float:
        """The probability of so many false ones or more if epsilon were true."""
        return float(stats.binomtest(self.false, self.repeats, self.epsilon, "greater").pvalue)

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval for the probability of being false."""
        found = stats.binomtest(self.false, self.repeats).proportion_ci(0.95)
        return float(found.low), float(found.high)


Certifier = Callable[[AuditFamily, Plan, Evidence], tuple[list[Statement], np.ndarray, int]]
"""From evidence to statements, the posterior they speak of, and the deployed sample."""


def honest(
    family: AuditFamily, plan: Plan, evidence: Evidence
) -> tuple[list[Statement], np.ndarray, int]:
    """The real path: posterior, deployed sample and statements from plan and evidence."""
    found = find_posterior(plan, family.prior, evidence)
    chosen = (found.log_posterior, found.deployed_sample)
    return rigorous_statements(plan, evidence, *chosen), *chosen


def audit(
    family: AuditFamily,
    repeats: int = 2000,
    size: int = 60,
    epsilon: float = 0.3,
    seed: int = 0,
    certifier: Certifier = honest,
) -> list[Outcome]:
    """Certify `repeats` data sets and count false statements, each by itself and jointly."""
    plan = family.plan(size, epsilon)
    truth = Truth(plan, family.table, family.chances)
    exact = [claim.exact(truth) for claim in plan.claims]
    random = np.random.default_rng(seed)
    names = [claim.name for claim in plan.claims]
    false = np.zeros((repeats, len(names)), bool)
    loose = np.zeros((repeats, len(names)))
    for repeat in range(repeats):
        evidence = family.draw(random, size)
        statements, log_posterior, deployed = certifier(family, plan, evidence)
        weights = np.exp(normalised(log_posterior))
        for c, statement in enumerate(statements):
            asserted = Asserted(statement, weights, deployed)
            false[repeat, c], loose[repeat, c] = plan.claims[c].judge(asserted, exact[c], truth)
    ledger = plan.ledger
    single = [
        Outcome(family.name, name, int(false[:, c].sum()), repeats, ledger.of(name),
                float(loose[:, c].mean()))
        for c, name in enumerate(names)
    ]  # fmt: skip
    joint = int(false.any(axis=1).sum())
    return [*single, Outcome(family.name, "all jointly", joint, repeats, epsilon, float("nan"))]


def violations(outcomes: list[Outcome], significance: float = 1e-3) -> list[Outcome]:
    """Statements that are false too often, at a significance corrected for their number."""
    return [o for o in outcomes if o.p_value < significance / len(outcomes)]
