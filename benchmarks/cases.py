"""What is measured of every stage, and how it is varied: one small function each.

All on quadratics with the paper's rule, whose sizes can be chosen. The goal is one that every rule
reaches, so that what is measured does not depend on what was learned. Sizes are chosen so large
that the work is more than what a call costs anyway.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.measure import Call
from benchmarks.records import Temporary
from surestep.base.keys import named_key
from surestep.certify.gather import certify
from surestep.certify.pilot import pilot_on
from surestep.certify.plan import Plan
from surestep.certify.planning import kept_iterations, plan_certificate
from surestep.certify.settings import CertifySettings
from surestep.certify.statements import make_certificate
from surestep.certify.targets import Target
from surestep.evaluate.test_set import EvaluateSettings, evaluate
from surestep.paper.quadratics import Quadratics, QuadraticsSettings
from surestep.problem.datasets import (
    Commitment,
    PriorSet,
    SealedTrainSet,
    TestSet,
    TrainSet,
    ValidationSet,
)
from surestep.problem.draw import working_precision
from surestep.problem.goal import Goal
from surestep.rollout.batched import losses_at
from surestep.rules import Coordinatewise, HeavyBall
from surestep.rules.base import Rule, hyper_of
from surestep.solver.solver import Solver
from surestep.train.constraint import Constraint
from surestep.train.experiment import Accuracies
from surestep.train.imitate import ImitateSettings, imitate
from surestep.train.locate import LocateSettings, locate
from surestep.train.sample import Sampled, SampleSettings, sample
from surestep.train.task import Task

DIMENSION, HORIZON, BLOCK = 50, 20, 256
NO_PLAN = Commitment("no configuration", "no plan")
"""What opens train sets that nothing is certified on."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Something to be timed, and what its compiled program says of its memory."""

    call: Call
    temporary_bytes: Callable[[], int] | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One stage, varied along one axis."""

    stage: str
    axis: str
    sizes: tuple[int, ...]
    prepare: Callable[[int], Prepared]
    expected: float = math.nan
    """The exponent that the design promises; not a number where it promises none."""

    @property
    def few(self) -> tuple[int, ...]:
        """The smaller sizes, for a quick look."""
        return self.sizes[:3]


@dataclasses.dataclass(frozen=True)
class Setting:
    """A family of some dimension, a rule that was not trained, and the heavy ball method."""

    problem: Quadratics
    rule: Rule
    teacher: HeavyBall

    def task(self, horizon: int = HORIZON) -> Task:
        """What the stages have in common."""
        easy = Goal(scale=1e12, exponent=1.0)
        return Task(self.problem, easy, Constraint(lower=0.8, width=0.15), horizon, BLOCK)

    def prior(self, samples: int, size: int) -> Sampled:
        """A prior of rules next to the rule, with made-up losses."""
        random = np.random.default_rng(0)
        with working_precision(self.problem):
            centre = np.asarray(hyper_of(self.rule))
        return Sampled.given(
            hypers=centre + 1e-4 * random.normal(size=(samples, centre.size)),
            probabilities=np.full(samples, 0.95),
            losses=random.uniform(0.1, 1.0, (samples, size)),
            thresholds=np.full(size, 1e12),
            log_prior=np.full(samples, -math.log(samples)),
        )


@functools.lru_cache(maxsize=8)
def setting(dimension: int = DIMENSION) -> Setting:
    """The setting of a dimension."""
    settings = QuadraticsSettings(dimension=dimension)
    problem = Quadratics.create(settings, 0)
    with working_precision(problem):
        rule = Coordinatewise.create(named_key(0, "rule"))
    return Setting(problem, rule, HeavyBall.for_constants(settings.smoothness[1], 1e-3))


def split_instances(size: int) -> Prepared:
    """Drawing a large train set, a part at a time."""
    problem = setting().problem

    def drawn() -> None:
        for part in SealedTrainSet(problem, size, 0).open(NO_PLAN).parts():
            jax.block_until_ready(part)

    return Prepared(drawn)


def _imitated(dimension: int, steps: int) -> Prepared:
    mine = setting(dimension)
    data = PriorSet.draw(mine.problem, 64, 0)
    # No distance is 0, so all steps are made.
    settings = ImitateSettings(steps=steps, tolerance=0.0, chunk=500)
    task = mine.task(350)
    return Prepared(lambda: imitate(settings, task, mine.rule, mine.teacher, data, 0).hyper)


def imitate_steps(size: int) -> Prepared:
    """Imitating for some steps."""
    return _imitated(DIMENSION, size)


def imitate_dimension(size: int) -> Prepared:
    """Imitating with some unknowns."""
    return _imitated(size, 1000)


def _located(dimension: int, steps: int, instances: int) -> Prepared:
    mine = setting(dimension)
    prior = PriorSet.draw(mine.problem, instances, 0)
    validation = ValidationSet.draw(mine.problem, 64, 0)
    settings = LocateSettings(steps=steps, check_every=10**6, chunk=1000)
    task = mine.task()
    return Prepared(lambda: locate(settings, task, mine.rule, prior, validation, 0).hyper)


def locate_steps(size: int) -> Prepared:
    """Locating for some steps, with one check at the end."""
    return _located(DIMENSION, size, 64)


def locate_instances(size: int) -> Prepared:
    """Locating with a prior set of some size: a step looks at one instance."""
    return _located(DIMENSION, 4000, size)


def locate_dimension(size: int) -> Prepared:
    """Locating with some unknowns."""
    return _located(size, 1000, 64)


def _sampled(samples: int, instances: int, iterations: int) -> Prepared:
    mine = setting()
    prior = PriorSet.draw(mine.problem, instances, 0)
    validation = ValidationSet.draw(mine.problem, 64, 0)
    settings = SampleSettings(samples=samples)
    task = mine.task(iterations)
    return Prepared(lambda: sample(settings, task, mine.rule, prior, validation, 0).hypers)


def sample_samples(size: int) -> Prepared:
    """Sampling and weighing some samples, all of whose proposals are accepted."""
    return _sampled(size, 256, HORIZON)


def sample_iterations(size: int) -> Prepared:
    """Sampling with some horizon."""
    return _sampled(2, 64, size)


def _rollouts(rule: Rule, task: Task, data: TrainSet) -> Callable[[], int]:
    """Temporary bytes of the program that rolls a rule out on a data set."""

    def found() -> int:
        problem, thetas = task.problem, data.part(0, min(data.size, 1024))
        with working_precision(problem):
            program: Any = losses_at
            lowered = program.lower(rule, problem, thetas, (task.horizon,), task.block)
            return int(lowered.compile().compiled.memory_analysis().temp_size_in_bytes)

    return found


_TARGETS = (Target("start", 1e-2), Target("start", 1e-4))


def _planned(task: Task, rule: Rule, prior: Sampled, train: int) -> Plan:
    data, kept = PriorSet.draw(task.problem, 64, 0), kept_iterations(task.horizon, 36)
    none, samples = np.zeros(data.size), len(prior.hypers)
    hyper = prior.hypers[0]
    pilot = pilot_on(task, rule, hyper, {}, _TARGETS, kept, data, none, samples, train)
    return plan_certificate(CertifySettings(), prior, pilot, _TARGETS, "", train, kept, None)


def _certified(dimension: int, samples: int, instances: int, iterations: int) -> Prepared:
    mine = setting(dimension)
    task, prior = mine.task(iterations), mine.prior(samples, 64)
    data = SealedTrainSet(mine.problem, instances, 0).open(NO_PLAN)
    plan, none = _planned(task, mine.rule, prior, instances), np.zeros(instances)
    return Prepared(
        lambda: certify(plan, task, mine.rule, prior, {}, none, data).evidence.losses,
        _rollouts(mine.rule, task, data),
    )


def certify_instances(size: int) -> Prepared:
    """Certifying on some instances."""
    return _certified(DIMENSION, 1, size, HORIZON)


def certify_samples(size: int) -> Prepared:
    """Certifying some samples."""
    return _certified(DIMENSION, size, 256, HORIZON)


def certify_iterations(size: int) -> Prepared:
    """Certifying with some horizon."""
    return _certified(DIMENSION, 1, 256, size)


def certify_dimension(size: int) -> Prepared:
    """Certifying with some unknowns."""
    return _certified(size, 1, 256, HORIZON)


def statements_samples(size: int) -> Prepared:
    """Computing the statements of a certificate from the evidence of some samples."""
    mine = setting()
    task, prior = mine.task(), mine.prior(size, 64)
    data = SealedTrainSet(mine.problem, 256, 0).open(NO_PLAN)
    plan = _planned(task, mine.rule, prior, data.size)
    found = certify(plan, task, mine.rule, prior, {}, np.zeros(data.size), data)
    return Prepared(lambda: make_certificate("bench", plan, "", found, {"train": 256}, {}))


def evaluate_instances(size: int) -> Prepared:
    """Evaluating the rule and one opponent on some test instances."""
    mine = setting()
    task, data = mine.task(), TestSet.draw(mine.problem, size, 0)
    settings, accuracies = EvaluateSettings(limit=100), Accuracies((1e-3,))
    rules = {"heavy ball": mine.teacher}
    return Prepared(lambda: evaluate(settings, task, mine.rule, rules, accuracies, data).losses)


def _solved(instances: int, iterations: int) -> Prepared:
    mine = setting()
    task = mine.task()
    solver = Solver(mine.problem, mine.rule, HORIZON, task.goal, BLOCK)
    thetas = TestSet.draw(mine.problem, instances, 0).thetas
    return Prepared(lambda: solver.solve(thetas, iterations=iterations).loss)


def solve_instances(size: int) -> Prepared:
    """Solving a batch of some instances."""
    return _solved(size, HORIZON)


def solve_iterations(size: int) -> Prepared:
    """Solving a batch with some iterations."""
    return _solved(256, size)


CASES = (
    Case("split", "instances", (8192, 16384, 32768, 65536), split_instances, 1.0),
    Case("imitate", "steps", (2000, 4000, 8000, 16000), imitate_steps, 1.0),
    Case("imitate", "dimension", (400, 800, 1600, 3200), imitate_dimension),
    Case("locate", "steps", (4000, 8000, 16000, 32000), locate_steps, 1.0),
    Case("locate", "instances", (64, 256, 1024, 4096), locate_instances, 0.0),
    Case("locate", "dimension", (400, 800, 1600, 3200), locate_dimension),
    Case("sample", "samples", (4, 8, 16, 32), sample_samples, 1.0),
    Case("sample", "iterations", (200, 400, 800, 1600), sample_iterations, 1.0),
    Case("certify", "instances", (512, 1024, 2048, 4096, 8192), certify_instances, 1.0),
    Case("certify", "samples", (2, 4, 8, 16, 32), certify_samples, 1.0),
    Case("certify", "iterations", (200, 400, 800, 1600), certify_iterations, 1.0),
    Case("certify", "dimension", (100, 200, 400, 800), certify_dimension),
    Case("statements", "samples", (32, 64, 128, 256), statements_samples),
    Case("evaluate", "instances", (64, 128, 256, 512), evaluate_instances, 1.0),
    Case("solve", "instances", (1024, 2048, 4096, 8192), solve_instances, 1.0),
    Case("solve", "iterations", (50, 100, 200, 400), solve_iterations, 1.0),
)

STAGES = tuple(dict.fromkeys(case.stage for case in CASES))


def temporary(prepared: Prepared) -> int:
    """The compiled program's temporary bytes, or -1."""
    return -1 if prepared.temporary_bytes is None else prepared.temporary_bytes()


def block_temporaries(sizes: tuple[int, ...], block: int) -> list[Temporary]:
    """Temporary bytes of rollouts on so many instances, `block` of them side by side."""
    mine = setting()
    task = dataclasses.replace(mine.task(), block=block)
    found = []
    for size in sizes:
        data = SealedTrainSet(mine.problem, size, 0).open(NO_PLAN)
        found.append(Temporary(size, block, _rollouts(mine.rule, task, data)()))
    return found
