"""How much of the machine the hot paths use.

Rollouts of the paper's rules, as a share of the rate at which the machine multiplies large matrices
of the same precision, and training steps of the quadratics' rule. On quadratics the same rule in
plain NumPy is timed in the same rounds.
"""

import dataclasses
import math

import numpy as np

from benchmarks.measure import ORDER, Call, Spell, in_rounds, matrix_product
from benchmarks.records import Speed
from benchmarks.transcription import NumpyRule, check_transcription
from benchmarks.work import iteration_flops
from surestep import paper
from surestep.base.keys import named_key
from surestep.paper import image, network, quadratics
from surestep.problem.base import Problem, Theta, instance
from surestep.problem.datasets import PriorSet
from surestep.problem.draw import working_precision
from surestep.rollout.batched import losses_at
from surestep.rules import Convolutional, Coordinatewise, Preconditioned
from surestep.rules.base import Rule, hyper_of
from surestep.train.locate import LocateSettings
from surestep.train.steps import enrol, train_compiled
from surestep.train.trajectory import Material, TrainingSettings

STEPS = 5000
"""Training steps in a call."""
NUMPY_STEPS = 500
PRODUCT = "product"
NUMPY = "numpy"


@dataclasses.dataclass(frozen=True)
class Path:
    """A hot path: what is timed, and what it takes."""

    name: str
    unit: str
    units: int
    problem: Problem
    call: Call
    goal: str
    flops: tuple[float, float] = (math.nan, math.nan)
    """Operations of a call: of products, and of the whole program."""
    numpy: Call | None = None
    numpy_units: int = 1


def measure_path(path: Path, rounds: int) -> Speed:
    """Time a path beside matrix products of its precision."""
    precision = path.problem.precision
    calls: dict[str, Call] = {PRODUCT: matrix_product(precision), path.name: path.call}
    if path.numpy is not None:
        calls[NUMPY] = path.numpy
    with working_precision(path.problem):
        timed = in_rounds(calls, rounds)

    def processor(name: str) -> list[float]:
        return [spell.processor for spell in timed.get(name, list[Spell]())]

    return Speed(
        name=path.name,
        unit=path.unit,
        units=path.units,
        precision=precision,
        seconds=[spell.seconds for spell in timed[path.name]],
        processor=processor(path.name),
        anchor=processor(PRODUCT),
        product_flops=path.flops[0],
        program_flops=path.flops[1],
        numpy=[seconds / path.numpy_units for seconds in processor(NUMPY)],
        rate=2 * ORDER**3 / min(processor(PRODUCT)),
        goal=path.goal,
    )


def _rollouts(
    name: str,
    problem: Problem,
    rule: Rule,
    thetas: Theta,
    number: int,
    iterations: int,
    block: int,
    goal: str,
) -> Path:
    work = iteration_flops(rule, problem, instance(thetas, 0))
    each = tuple(number * iterations * flops for flops in work)
    return Path(
        name=f"{name}: rollouts of {iterations} iterations",
        unit="rollout",
        units=number,
        problem=problem,
        call=lambda: losses_at(rule, problem, thetas, (iterations,), block),
        goal=goal,
        flops=(each[0], each[1]),
    )


def quadratics_rollouts(quick: bool) -> Path:
    """The paper's quadratics, with the NumPy transcription beside them."""
    problem, rule, prior = _quadratics(quick)
    iterations = 50 if quick else 350
    with working_precision(problem):
        check_transcription(rule, problem, prior.thetas)
        path = _rollouts(
            "quadratics", problem, rule, prior.thetas, prior.size, iterations, 256, "50 % or more"
        )
    plain, (diagonal, target) = NumpyRule(rule), _first(prior)
    return dataclasses.replace(path, numpy=lambda: plain.rollout(diagonal, target, iterations))


def quadratics_locating(quick: bool) -> Path:
    """Training steps on the paper's quadratics."""
    problem, rule, prior = _quadratics(quick)
    steps = STEPS // 10 if quick else STEPS
    with working_precision(problem):
        material = Material.of(TrainingSettings(), prior)
        pupil = enrol(rule, problem, material, hyper_of(rule), named_key(0, "bench"))
        rates, key = LocateSettings().rates(0, steps), named_key(1, "bench")
    diagonal, target = _first(prior)
    return Path(
        name="quadratics: locating",
        unit="step",
        units=steps,
        problem=problem,
        call=lambda: train_compiled(pupil, rule, problem, material, key, rates, 1, 350, "random"),
        goal="40 microseconds or less",
        numpy=lambda: NumpyRule(rule).train(diagonal, target, NUMPY_STEPS),
        numpy_units=NUMPY_STEPS,
    )


def image_rollouts(quick: bool) -> Path:
    """The paper's pictures (in a quick run the small ones of the preset `quick`)."""
    config = paper.preset("image", "quick" if quick else "paper")
    problem = image.family(config)
    number = 10  # that fit a cache
    prior = PriorSet.draw(problem, number, 0)
    with working_precision(problem):
        rule = Convolutional.create(
            named_key(0, "rule"), config.problem.height, config.problem.width
        )
        return _rollouts("image", problem, rule, prior.thetas, number, 5, number, "25 % or more")


def network_rollouts(quick: bool) -> Path:
    """The paper's network."""
    config = paper.preset("network", "paper")
    problem = network.family(config)
    prior = PriorSet.draw(problem, 64 if quick else 250, 0)
    with working_precision(problem):
        dimension = sum(weights.size for weights in problem.initial)
        rule = Preconditioned.create(named_key(0, "rule"), dimension=dimension)
        iterations = 20 if quick else 100
        return _rollouts(
            "network", problem, rule, prior.thetas, prior.size, iterations, 256, "25 % or more"
        )


PATHS = (quadratics_rollouts, quadratics_locating, image_rollouts, network_rollouts)


def _quadratics(quick: bool) -> tuple[quadratics.Quadratics, Coordinatewise, PriorSet]:
    problem = quadratics.family(paper.preset("quadratics", "paper"))
    prior = PriorSet.draw(problem, 64 if quick else 250, 0)
    with working_precision(problem):
        return problem, Coordinatewise.create(named_key(0, "rule")), prior


def _first(prior: PriorSet) -> tuple[np.ndarray, np.ndarray]:
    """The first instance, for NumPy."""
    return np.asarray(prior.thetas.diagonal[0]), np.asarray(prior.thetas.target[0])
