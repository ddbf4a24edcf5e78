"""A configuration that suits a problem and a time."""

import dataclasses
import math
import re
import time
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from surestep.auto.choice import goal_for, pick, survey_of
from surestep.auto.doctor import examine
from surestep.auto.survey import Survey
from surestep.auto.trusted import Work, side_by_side
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.base.progress import Reporter
from surestep.evaluate.test_set import EvaluateSettings
from surestep.problem import (
    ROLES,
    PriorSet,
    Problem,
    SplitSizes,
    StockedProblem,
    instance,
    working_precision,
)
from surestep.rollout.batched import rollouts
from surestep.rules import SafeguardSettings
from surestep.rules.base import Rule
from surestep.run.config import RunConfig
from surestep.train import (
    Constraint,
    LocateSettings,
    Material,
    PopulationSettings,
    SampleSettings,
    TrainingSettings,
    enrol_compiled,
    train_compiled,
)

SIZES = SplitSizes(prior=200, validation=200, train=250, test=100)
"""Sizes of the data sets of a problem that draws its own instances."""

_BLOCK = 50  # instances of a batch; sizes are multiples of it, so that nothing compiles twice

_CHUNK = 250  # training steps at a time

_LONGEST = 300  # iterations of a horizon

_COMPILED = 30.0  # what all other programs take to compile, in units of a rollout's program

_SHARE, _SHORTEST = 0.15, 3.0  # of the budget, and seconds: what the survey's solver may take

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclasses.dataclass(frozen=True)
class OwnSettings:
    """What a run of a user's own problem knows beside its numbers."""

    accuracies: tuple[float, ...] = ()
    """How far above the least loss solvers are timed."""
    file: Annotated[str, tyro.conf.Suppress] = ""
    """Where the problem is defined; empty if it came from Python."""
    shortest: Annotated[float, tyro.conf.Suppress] = 0.0
    """About how many seconds a run takes at least, however little it learns: what compiling takes,
    as measured before it began."""
    allowed: Annotated[float, tyro.conf.Suppress] = 0.0
    """How many seconds the survey's solver was allowed; 0: as many as it needs."""
    solved: Annotated[Work, tyro.conf.Suppress] = dataclasses.field(default_factory=Work)
    """What it did then, and does again wherever the run goes on."""

    def validate(self) -> None:
        """Refuse accuracies that no loss could be below, and work that nobody has done."""
        if self.solved.batch < 0 or min(self.solved.iterations, default=0) < 0 or self.allowed < 0:
            raise ConfigurationError("problem.solved and problem.allowed must not be negative")
        if not self.accuracies or not all(value > 0 for value in self.accuracies):
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


def too_short(config: Config, budget: float) -> str:
    """What to say of a budget that no run of the problem can stay within; nothing if one can."""
    shortest = config.problem.shortest
    if budget >= shortest:
        return ""
    return (
        f"this run takes about {shortest:.0f} s however little it learns, most of it compiling: "
        f"the budget of {budget:g} s will be exceeded"
    )


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


def configure(problem: Problem, found: Survey, name: str, budget: float, seed: int) -> Config:
    """Numbers that suit a problem and a time in seconds."""
    sizes = sizes_for(problem)
    guard = SafeguardSettings(factor=10.0, patience=15)
    rule = pick(problem, found, guard).rule
    data = PriorSet.draw(problem, len(found.minima), seed)
    horizon, rollout_seconds, compiling = _horizon(problem, rule, data, found)
    length = min(10, horizon)
    training = TrainingSettings(objective="log", distances=True, floor=_digit(1e-8 * found.gap))
    began = time.monotonic()
    step_seconds = _measure(problem, rule, data, training, length, horizon)
    measuring = time.monotonic() - began
    # What is compiled takes its time, whatever the budget; `shortest` says how much.
    checks = int(np.clip(0.2 * budget / (step_seconds * _CHUNK), 1, 200))
    between = max(1, checks // 6)
    samples = int(np.clip(0.1 * budget / (rollout_seconds * _observed(sizes)), 3, 30))
    return Config(
        name=name,
        preset="auto",
        problem=OwnSettings(
            tuple(_digit(share * found.gap) for share in (1e-2, 1e-4, 1e-6)),
            # Sampling compiles what training did, once more.
            shortest=round(found.seconds + 2 * measuring + _COMPILED * compiling, 0),
            allowed=found.allowed if math.isfinite(found.allowed) else 0.0,
            solved=found.work,
        ),
        goal=goal_for(problem, found),
        horizon=horizon,
        rule="auto",
        seed=seed,
        block=side_by_side(found.dimension, _BLOCK),
        sizes=sizes,
        constraint=_constraint(sizes.validation),
        guard=guard,
        training=training,
        population=PopulationSettings(
            members=2 if budget > 240 else 1, steps=_CHUNK, length=length, instances=64,
            rates=(1.0, 0.1),
        ),
        locate=LocateSettings(
            steps=checks * _CHUNK, learning_rate=3e-4, halve_every=between * _CHUNK * 2,
            length=(length,), check_every=between * _CHUNK, chunk=_CHUNK, keep="best",
        ),
        sample=SampleSettings(samples=samples, length=length),
        evaluate=EvaluateSettings(
            # Solvers that need thousands of iterations are not worth a short budget.
            limit=5_000 if budget >= 60 else 1_000,
            timed=min(50, sizes.test),
            shifted=0,
        ),
    )  # fmt: skip


def _observed(sizes: SplitSizes) -> int:
    """On how many instances every sample is rolled out."""
    return sizes.prior + sizes.validation + sizes.train


def _constraint(validation: int) -> Constraint:
    """As strict as the validation set allows."""
    for lower, width in ((0.95, 0.075), (0.9, 0.1), (0.8, 0.2), (0.6, 0.4), (0.3, 0.7)):
        found = Constraint(lower=lower, width=width)
        if validation >= found.fewest_instances():
            return found
    raise ConfigurationError(
        f"{validation} validation instances are too few to estimate a success probability: bring "
        "more instances"
    )


def _horizon(
    problem: Problem, rule: Rule, data: PriorSet, found: Survey
) -> tuple[int, float, float]:
    """After how many iterations nine of ten instances are within 1e-6 of what there is to gain.

    Seen on instances that the rule was not made from. Also the seconds that a rollout takes, and
    those that compiling it took.
    """
    with working_precision(problem):
        others = instance(data.thetas, jnp.arange(found.fitted, data.size))
        losses, took, first_took = np.zeros(0), 0.0, 0.0
        for _ in range(2):
            first_took = took
            began = time.monotonic()
            beside = side_by_side(found.dimension, data.size - found.fitted)
            shown = rollouts(rule, problem, others, _LONGEST, beside)
            losses = np.asarray(shown.losses, np.float64)
            took = time.monotonic() - began
    close = losses <= (found.minima[found.fitted :] + 1e-6 * found.gap)[:, None]
    first = np.where(close.any(axis=1), close.argmax(axis=1), _LONGEST)
    wanted = int(np.quantile(first, 0.9, method="inverted_cdf"))
    horizon = int(np.clip(5 * math.ceil(max(wanted, 1) * 1.2 / 5), 5, _LONGEST))
    return horizon, took / len(losses) * horizon / _LONGEST, max(0.0, first_took - took)


def _measure(
    problem: Problem, rule: Rule, data: PriorSet, settings: TrainingSettings, length: int,
    horizon: int,
) -> float:  # fmt: skip
    """Seconds of a training step, by the program that will train."""
    with working_precision(problem):
        material = Material(data.thetas, jnp.zeros(data.size), settings)
        key = named_key(0, "measure")
        pupil = enrol_compiled(rule, problem, material, key)
        arguments = (
            rule,
            problem,
            material,
            key,
            jnp.full(_CHUNK, 1e-12, jnp.result_type(float)),
            length,
            horizon,
        )
        began = 0.0
        for _ in range(2):
            began = time.monotonic()
            jax.block_until_ready(train_compiled(pupil, *arguments, "random")[0].hyper)
        return (time.monotonic() - began) / _CHUNK


def _digit(value: float) -> float:
    """A number with one digit."""
    return float(f"{value:.0e}")


def survey_checked(
    problem: Problem,
    seed: int,
    budget: float = math.inf,
    report: Reporter | None = None,
    begun: OwnSettings | None = None,
) -> Survey:
    """The survey of a problem that keeps its contract, in its share of a budget in seconds."""
    examine(problem, seed)
    size = sizes_for(problem).prior
    return surveyed(problem, size, seed, begun, max(_SHORTEST, _SHARE * budget), report)


def surveyed(
    problem: Problem,
    size: int,
    seed: int,
    begun: OwnSettings | None = None,
    allowed: float = math.inf,
    report: Reporter | None = None,
) -> Survey:
    """The survey that a run with a prior set of this size is built on.

    Of a run that has begun it is the one that it began with, however long that takes now. The last
    survey of the process is kept.
    """
    again = begun.solved if begun is not None and begun.solved.batch else None
    if begun is not None:
        allowed = begun.allowed or math.inf
    of = (id(problem), size, seed)
    for known, same, found in _last:
        enough = found.work == again if again else found.allowed >= allowed
        if known == of and same is problem and enough:
            return found
    found = survey_of(problem, size, seed, allowed, report, again)
    _last[:] = [(of, problem, found)]
    return found


_last: list[tuple[tuple[int, int, int], Problem, Survey]] = []
