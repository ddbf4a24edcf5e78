"""From a user's problem to a run: a configuration that suits it and a time, and the run itself."""

import dataclasses
import math
import re
import time
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tyro

from surestep.config import RunConfig
from surestep.constraint import Constraint
from surestep.errors import ConfigurationError
from surestep.experiment import Experiment
from surestep.goal import Goal
from surestep.learning import Learned, learn
from surestep.own.auto import experiment_for, goal_scale, pick, survey_of
from surestep.own.doctor import examine
from surestep.own.files import absolute, open_file, title
from surestep.own.survey import Survey
from surestep.problem import Problem, StockedProblem, instance, working_precision
from surestep.progress import Reporter, Silence
from surestep.randomness import named_key
from surestep.rollout import rollouts
from surestep.rule import Rule, hyper_of
from surestep.rules import SafeguardSettings
from surestep.split import PriorSet, SplitSizes
from surestep.stages.evaluate import EvaluateSettings
from surestep.stages.locate import LocateSettings
from surestep.stages.population import PopulationSettings
from surestep.stages.sample import SampleSettings
from surestep.store import RunFolder
from surestep.training import enrol, train
from surestep.trajectory import Material, TrainingSettings

SIZES = SplitSizes(prior=200, validation=200, train=250, test=100)
"""Sizes of the data sets of a problem that draws its own instances."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclasses.dataclass(frozen=True)
class OwnSettings:
    """What a run of a user's own problem knows beside its numbers."""

    accuracies: tuple[float, ...] = ()
    """How far above the least loss solvers are timed."""
    file: Annotated[str, tyro.conf.Suppress] = ""
    """Where the problem is defined; empty if it came from Python."""

    def validate(self) -> None:
        """Refuse accuracies that no loss could be below."""
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


def fit(
    problem: Problem,
    budget: str | float = "2m",
    seed: int = 0,
    out: str | Path | None = None,
    report: Reporter | None = None,
    **changes: Any,
) -> Learned:
    """Learn a solver for a problem, certify it and evaluate it, in about the time that is given.

    The rule is picked from the problem's structure; `changes` are fields of `RunConfig` that are to
    be other than they would be. With a folder, the run is kept there and can be gone on with.
    """
    report = report or Silence()
    found = survey_checked(problem, seed)
    config = configure(problem, found, _name(problem), seconds(budget), seed)
    config = dataclasses.replace(config, **changes)
    experiment = experiment_for(problem, found, config.guard, config.problem.accuracies)
    report.say(f"learning: {pick(problem, found, config.guard).words}")
    folder = None if out is None else RunFolder(Path(out))
    return learn(config, experiment, folder, report)


def survey_checked(problem: Problem, seed: int) -> Survey:
    """The survey of a problem that keeps its contract."""
    examine(problem, seed)
    return survey_of(problem, sizes_for(problem).prior, seed)


def configure_file(spec: str, budget: float, seed: int) -> Config:
    """Numbers for the problem in a file."""
    problem = open_file(spec)
    if isinstance(problem, Experiment):
        raise ConfigurationError(
            f"{spec} is an experiment: its rule and opponents are chosen already, so run it from "
            "Python, surestep.learn(config, experiment); a Problem can be run from here"
        )
    found = survey_checked(problem, seed)
    config = configure(problem, found, title(spec), budget, seed)
    settings = dataclasses.replace(config.problem, file=absolute(spec))
    return dataclasses.replace(config, problem=settings)


def problem_in(spec: str) -> Problem:
    """The problem in a file, whether it is alone there or in an experiment."""
    if not spec:
        raise ConfigurationError(
            "this run's problem was defined in Python, not in a file: name a file that defines it"
        )
    found = open_file(spec)
    return found.problem if isinstance(found, Experiment) else found


def build(config: Config) -> Experiment:
    """The experiment of a configuration that was made for a file."""
    if not config.problem.file:
        raise ConfigurationError(
            f"the problem {config.name} was defined in Python, not in a file: go on from there, "
            "with the same call of surestep.fit"
        )
    problem = open_file(config.problem.file)
    if isinstance(problem, Experiment):
        raise ConfigurationError(f"{config.problem.file} has become an experiment")
    found = survey_of(problem, config.sizes.prior, config.seed)
    return experiment_for(problem, found, config.guard, config.problem.accuracies)


def _name(problem: Problem) -> str:
    return str(getattr(problem, "name", type(problem).__name__))


def sizes_for(problem: Problem) -> SplitSizes:
    """As many instances as there are, or as a run usually takes."""
    if not isinstance(problem, StockedProblem):
        return SIZES
    roles = ("PriorSet", "ValidationSet", "TrainSet", "TestSet")
    sizes = [problem.available(role) for role in roles]
    most = dataclasses.astuple(SIZES)
    # All that there is certifies; training and showing have enough at some point.
    most = (2 * most[0], most[1], 10_000, 2 * most[3])
    return SplitSizes(*(min(pair) for pair in zip(sizes, most, strict=True)))


def configure(problem: Problem, found: Survey, name: str, budget: float, seed: int) -> Config:
    """Numbers that suit a problem and a time in seconds."""
    sizes = sizes_for(problem)
    guard = SafeguardSettings(factor=10.0, patience=15)
    rule = pick(problem, found, guard).rule
    data = PriorSet.draw(problem, len(found.minima), seed)
    horizon = _horizon(problem, rule, data, found)
    length = min(10, horizon)
    training = TrainingSettings(objective="log", distances=True, floor=_digit(1e-8 * found.gap))
    step_seconds, rollout_seconds = _measure(problem, rule, data, training, length, horizon)
    steps = int(np.clip(0.3 * budget / step_seconds, 100, 50_000))
    steps = _round(steps)
    whole = sizes.prior + sizes.validation + sizes.train
    samples = int(np.clip(0.15 * budget / (rollout_seconds * whole), 3, 30))
    return Config(
        name=name,
        preset="auto",
        problem=OwnSettings(tuple(_digit(share * found.gap) for share in (1e-2, 1e-4, 1e-6))),
        goal=Goal(scale=float(f"{goal_scale(found):.3g}"), exponent=1.0),
        horizon=horizon,
        rule="auto",
        seed=seed,
        block=64,
        sizes=sizes,
        constraint=_constraint(sizes.validation),
        guard=guard,
        training=training,
        population=PopulationSettings(
            members=2 if budget > 240 else 1, steps=max(10, steps // 8), length=length,
            instances=64, rates=(1.0, 0.1),
        ),
        locate=LocateSettings(
            steps=steps, learning_rate=3e-4, halve_every=max(1, steps // 3), length=(length,),
            check_every=max(1, steps // 6), chunk=max(1, steps // 12), keep="best",
        ),
        sample=SampleSettings(samples=samples, length=length),
        evaluate=EvaluateSettings(limit=5_000, timed=min(50, sizes.test), shifted=0),
    )  # fmt: skip


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


def _horizon(problem: Problem, rule: Rule, data: PriorSet, found: Survey) -> int:
    """After how many iterations nine of ten instances are within 1e-6 of what there is to gain.

    Seen on instances that the rule was not made from.
    """
    with working_precision(problem):
        others = instance(data.thetas, jnp.arange(found.fitted, data.size))
        shown = rollouts(rule, problem, others, 300, 64)
    losses = np.asarray(shown.losses, np.float64)
    close = losses <= (found.minima[found.fitted :] + 1e-6 * found.gap)[:, None]
    first = np.where(close.any(axis=1), close.argmax(axis=1), 300)
    wanted = int(np.quantile(first, 0.9, method="inverted_cdf"))
    return int(np.clip(5 * math.ceil(max(wanted, 1) * 1.2 / 5), 5, 300))


def _measure(
    problem: Problem, rule: Rule, data: PriorSet, settings: TrainingSettings, length: int,
    horizon: int,
) -> tuple[float, float]:  # fmt: skip
    """Seconds of a training step and of a rollout, compiled and warm."""
    with working_precision(problem):
        minima = jnp.zeros(data.size)
        material = Material(data.thetas, minima, settings)
        pupil = enrol(rule, problem, material, hyper_of(rule), named_key(0, "measure"))
        rates = jnp.full(20, 1e-12)
        began, arguments = 0.0, (rule, problem, material, named_key(0, "measure"), rates)
        for _ in range(2):
            began = time.monotonic()
            jax.block_until_ready(_train(pupil, *arguments, length, horizon, "random")[0].hyper)
        step = (time.monotonic() - began) / 20
        few = instance(data.thetas, jnp.arange(min(16, data.size)))
        for _ in range(2):
            began = time.monotonic()
            jax.block_until_ready(rollouts(rule, problem, few, horizon, 16).losses)
        return step, (time.monotonic() - began) / min(16, data.size)


_train = eqx.filter_jit(train)


def _digit(value: float) -> float:
    """A number with one digit."""
    return float(f"{value:.0e}")


def _round(number: int) -> int:
    """A whole number with two digits."""
    return int(float(f"{number:.1e}"))
