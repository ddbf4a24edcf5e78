"""A configuration that suits a problem and a time."""

import dataclasses
import math
import re
from typing import Annotated

import tyro

from surestep.auto.affordable import LONG, PILOT, Means, afford
from surestep.auto.arena import HELD, Use
from surestep.auto.choice import Choice, learns, survey_of
from surestep.auto.doctor import examine
from surestep.auto.goals import goal_for
from surestep.auto.survey import Survey
from surestep.auto.trusted import side_by_side
from surestep.base.errors import ConfigurationError
from surestep.base.progress import Reporter
from surestep.evaluate.test_set import EvaluateSettings
from surestep.problem import (
    ROLES,
    Goal,
    Problem,
    Programme,
    SplitSizes,
    StockedProblem,
)
from surestep.run.config import RunConfig
from surestep.train import (
    Constraint,
    LocateSettings,
    PopulationSettings,
    SampleSettings,
)
from surestep.train.langevin import StepSizes

SIZES = SplitSizes(prior=200, validation=200, train=250, test=100)
"""Sizes of the data sets of a problem that draws its own instances."""

_BLOCK = 50  # instances of a batch; sizes are multiples of it, so that nothing compiles twice

_SHARE, _SHORTEST = 0.15, 3.0  # of the budget, and seconds: what the survey's solver may take

_LEAST_REFERENCE = 50  # iterations that the trusted solver makes, however little time there is

_SAMPLES = 10  # of the posterior, where there is time

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclasses.dataclass(frozen=True)
class OwnSettings:
    """What a run of a user's own problem knows beside its numbers."""

    accuracies: tuple[float, ...] = ()
    """How far above the least loss solvers are timed."""
    file: Annotated[str, tyro.conf.Suppress] = ""
    """Where the problem is defined; empty if it came from Python."""
    accuracy: float = 1e-6
    """How close a solve should come: the share of what there is to gain that may be left."""
    use: Use = "both"
    """How the solver is going to be used: on single instances, in batches, or both ways."""
    budget: float = 120.0
    """The seconds that were given."""
    left_out: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    """What did not fit into them, in words."""

    def validate(self) -> None:
        """Refuse accuracies that no loss could be below, and uses that nobody knows."""
        if not 0 < self.accuracy < 1:
            raise ConfigurationError(
                "accuracy is the share of what there is to gain that may be left: a number between "
                f"0 and 1, not {self.accuracy}"
            )
        if self.use not in ("single", "batch", "both"):
            raise ConfigurationError(f"use must be 'single', 'batch' or 'both', not {self.use!r}")
        if not all(value > 0 for value in self.accuracies):
            raise ConfigurationError(
                f"problem.accuracies must be positive numbers, not {self.accuracies}"
            )


Config = RunConfig[OwnSettings]


def seconds(budget: str | float) -> float:
    """A time like `90s`, `10m` or `1h` (or a number of seconds), in seconds."""
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([smh])\s*", budget)
        if not found:
            raise ConfigurationError(f"a budget is a time like 90s, 10m or 1h, not {budget!r}")
        budget = float(found[1]) * _UNITS[found[2]]
    if not (math.isfinite(budget) and budget >= 10):
        raise ConfigurationError(f"a budget must be at least 10 seconds, not {budget:g}")
    return float(budget)


def sizes_for(problem: Problem) -> SplitSizes:
    """As many instances as there are, or as a run usually takes."""
    if not isinstance(problem, StockedProblem):
        return SIZES
    sizes = [problem.available(role) for role in ROLES]
    most = dataclasses.astuple(SIZES)
    # All that there is certifies; training and showing have enough at some point.
    most = (2 * most[0], most[1], 10_000, 2 * most[3])
    prior, validation, train, test = map(min, zip(sizes, most, strict=True))
    return SplitSizes(_whole(prior), _whole(validation), train, _whole(test))


def _whole(size: int) -> int:
    """So many instances that blocks are full, if there are enough for one."""
    return size - size % _BLOCK if size >= 2 * _BLOCK else size


def outline(name: str, budget: float, seed: int, settings: OwnSettings) -> Config:
    """A configuration before the problem was looked at: what is asked of it can be seen to fit."""
    return Config(
        name=name,
        preset="auto",
        problem=settings,
        goal=Goal(scale=0.01, exponent=1.0),
        horizon=100,
        rule="auto",
        seed=seed,
        sample_block=1,
        sizes=SIZES,
        constraint=_constraint(SIZES.validation),
        population=PopulationSettings(members=1),
        # The race has trained what was worth it.
        locate=LocateSettings(steps=0, length=(1,), keep="best"),
        sample=SampleSettings(samples=1, length=1, gradients=False, step_sizes=StepSizes(1e-8)),
        evaluate=EvaluateSettings(
            # Solvers that need thousands of iterations are not worth a short budget.
            limit=5_000 if budget >= LONG else 1_000,
            timed=HELD,
            factor=1,
            shifted=0,
        ),
    )


def configure(
    problem: Problem,
    found: Survey,
    choice: Choice,
    name: str,
    left: float,
    seed: int,
    settings: OwnSettings,
) -> tuple[Config, Choice]:
    """Numbers that suit a problem, the rule that was chosen for it, and the seconds that are left.

    Also the choice, with fewer opponents and less time for minima if there is not enough.
    """
    budget = settings.budget
    means = Means(budget, left, choice.solve, choice.compiling, found.drawing, found.each)
    # What cannot be learned has one sample, whatever the time.
    samples = _SAMPLES if learns(problem, choice) else 1
    afforded = afford(means, sizes_for(problem), len(choice.baselines), samples)
    sizes = afforded.sizes
    usual = outline(name, budget, seed, settings)
    config = dataclasses.replace(
        usual,
        problem=dataclasses.replace(
            settings,
            accuracies=_accuracies(problem, found, settings.accuracy),
            left_out=afforded.left_out,
        ),
        goal=goal_for(problem, found),
        horizon=choice.horizon,
        block=side_by_side(found.dimension, _BLOCK),
        sizes=sizes,
        constraint=_constraint(sizes.validation),
        sample=dataclasses.replace(usual.sample, samples=afforded.samples),
        certify=dataclasses.replace(
            usual.certify,
            compared=afforded.compared,
            closeness=afforded.closeness,
            shares=()
            if isinstance(problem, Programme)
            else tuple(sorted({1e-2, 1e-4, settings.accuracy}, reverse=True)),
            pilot=PILOT,
        ),
        evaluate=dataclasses.replace(usual.evaluate, timed=min(usual.evaluate.timed, sizes.test)),
    )
    opponents = dict(tuple(choice.baselines.items())[: afforded.opponents])
    reference = max(_LEAST_REFERENCE, int(choice.reference * afforded.minima))
    return config, dataclasses.replace(choice, baselines=opponents, reference=reference)


def _accuracies(problem: Problem, found: Survey, accuracy: float) -> tuple[float, ...]:
    """Residuals of programmes; of other losses, shares of what there is to gain."""
    if isinstance(problem, Programme):
        return tuple(sorted({1e-2, 1e-3, accuracy}, reverse=True))
    return tuple(_digit(share * found.gap) for share in (1e-2, 1e-4, 1e-6))


def _constraint(validation: int) -> Constraint:
    """As wide as it can be: the race has chosen the rule, and the constraint is to refuse none."""
    found = Constraint(lower=0.3, width=0.7)
    if validation < found.fewest_instances():
        raise ConfigurationError(
            f"{validation} validation instances are too few to estimate a success probability: "
            "bring more instances"
        )
    return found


def _digit(value: float) -> float:
    """A number with one digit."""
    return float(f"{value:.0e}")


def survey_checked(
    problem: Problem, seed: int, budget: float = math.inf, report: Reporter | None = None
) -> Survey:
    """The survey of a problem that keeps its contract, in its share of a budget in seconds."""
    examine(problem, seed)
    allowed = max(_SHORTEST, _SHARE * budget)
    return survey_of(problem, sizes_for(problem).prior, seed, allowed, report)
