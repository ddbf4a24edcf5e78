"""Candidates: what could solve a problem, from cheap to rich, told by what the survey has found.

Every candidate begins as a classical method that was given what the family's instances have in
common. What training adds to it is found out later, and by the clock.
"""

import dataclasses
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from surestep.auto.survey import Survey, quasi_newton_in
from surestep.problem import AffineFront, Problem, Programme, instance, working_precision
from surestep.problem.penalties import Simplex
from surestep.problem.structure import Structure
from surestep.rules import (
    LBFGS,
    BarzilaiBorwein,
    FistaWithRestart,
    Fixed,
    FrontADMM,
    GaussNewton,
    HeavyBall,
    LearnedFista,
    LearnedHeavyBall,
    MetricQuasiNewton,
    Newton,
    NewtonCG,
    Predicted,
    ProgrammeADMM,
    SharedADMM,
    SinglePrecisionQuasiNewton,
)
from surestep.rules.base import Rule, hyper_of, with_hyper
from surestep.rules.wrapper import StartsElsewhere

_NEWTON, _CHORD = 128, 400
"""The largest dimensions in which Hessians of single instances are inverted: in every iteration,
and once."""
_DENSE = 1500
"""The largest dimension in which one matrix is inverted for all instances."""
_WORTH_CASTING = 40
"""The least dimension in which products in single precision are tried."""
_TIMES = 40
"""The most iterations that have numbers of their own."""
_INNER = 8
"""Conjugate gradients of a Newton step, where Hessians are not inverted."""
_WORST = 1e12
"""The largest condition of a matrix that is inverted for all instances."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A rule that could be handed out, without its check."""

    name: str
    rule: Rule
    classical: bool = False
    """Whether it knows nothing of the family but step sizes: an opponent for others."""
    trainable: bool = False
    variants: tuple[np.ndarray, ...] = ()
    """Other hypers to try, for a rule whose numbers are tuned and not trained."""
    turn: int = 1
    """0: it is tried first, because it often wins; 2: after the others, and only if there is time.
    """


def candidates(problem: Problem, found: Survey, structure: Structure) -> list[Candidate]:
    """All that could solve the problem, the simplest first."""
    with working_precision(problem):
        if isinstance(problem, Programme):
            return [splitting(problem, found)]
        return list(
            _composite(problem, found, structure)
            if found.composite
            else _smooth(problem, found, structure)
        )


def splitting(problem: Programme, found: Survey) -> Candidate:
    """ADMM with the penalty that the survey has found, and others around it."""
    assert found.data is not None
    theta = instance(found.data.thetas, 0)
    rule = ProgrammeADMM.of(problem, 1 / found.smoothness, theta=theta)
    shares = sorted(np.geomspace(1 / 16, 16, 9), key=lambda share: abs(np.log(share)))
    grid = [np.array([np.log(s / found.smoothness), r]) for r in (1.6, 1.85) for s in shares]
    return Candidate(
        "ADMM with equalities solved for", rule, True, trainable=True, variants=tuple(grid), turn=0
    )


def _accelerated(found: Survey, name: str) -> Iterator[Candidate]:
    step = jnp.asarray(1 / found.smoothness)
    # Curvature was looked at in a few points only, and is less along most of the way.
    tuned = tuple(np.atleast_1d(factor / found.smoothness) for factor in (1.25, 1.6, 2.2, 3.0, 0.7))
    yield Candidate(name, FistaWithRestart(step), True, variants=tuned, turn=0)


def _composite(problem: Problem, found: Survey, structure: Structure) -> Iterator[Candidate]:
    yield from _accelerated(found, "FISTA with restart")
    if structure.shared_hessian is not None and structure.convex and found.dimension <= _DENSE:
        yield _splitting(problem, structure.shared_hessian, structure.matrix)
    base = FistaWithRestart(1 / found.smoothness)
    yield Candidate("FISTA, learned schedule", LearnedFista.around(base), trainable=True)


def _splitting(problem: Problem, hessian: np.ndarray, factor: np.ndarray | None) -> Candidate:
    largest = float(np.linalg.eigvalsh(hessian)[-1])
    penalty = getattr(problem, "penalty", None)
    # What a simplex adds up to is one equation more for the factor, and what is left is simple.
    total = penalty.total if isinstance(penalty, Simplex) else None
    matrix = jnp.asarray(hessian if factor is None or total is not None else factor)
    rule = SharedADMM.of(matrix, 0.1 * largest, total=total)
    # From the middle outwards: what comes first is a bar for the others.
    shares = sorted(np.geomspace(1e-4, 1.0, 13), key=lambda share: abs(np.log(share / 1e-2)))
    grid = [np.array([np.log(s * largest), r]) for r in (1.6, 1.9) for s in shares]
    return Candidate(
        "ADMM, factored once", rule, True, trainable=True, variants=tuple(grid), turn=0
    )


def _smooth(problem: Problem, found: Survey, structure: Structure) -> Iterator[Candidate]:
    yield from _accelerated(found, "accelerated gradients")
    yield _heavy_ball(found)
    # The first step alone matters here, and only a little.
    firsts = tuple(np.atleast_1d(factor / found.smoothness) for factor in (2.5, 6.0))
    rule = BarzilaiBorwein(jnp.asarray(1 / found.smoothness))
    yield Candidate("Barzilai-Borwein", rule, True, variants=firsts, turn=2)
    if structure.front is not None:
        yield from _split_front(structure.front, problem.precision)
    yield Candidate("L-BFGS", LBFGS(), True)
    if structure.squares and found.dimension <= _NEWTON:
        grid = tuple(np.atleast_1d(damping) for damping in (0.0, 1e-4, 1e-2, 0.1))
        rule = GaussNewton(jnp.asarray(1e-8))
        yield Candidate("Gauss-Newton", rule, True, variants=grid)
    if found.dimension <= _NEWTON:
        yield Candidate("Newton", Newton(), True, turn=2)
    if found.dimension <= _CHORD:
        yield Candidate("chord, a Hessian an instance", Newton(anew=False, pairs=3), True)
    root = jnp.asarray(found.root, problem.precision)
    if found.dimension > _NEWTON:
        rule = NewtonCG(_INNER, squares=structure.squares)
        name = "Gauss-Newton" if structure.squares else "Newton"
        yield Candidate(f"{name} by conjugate gradients", rule, True, turn=1 if found.shape else 2)
    metric = root**2 if root.ndim == 1 else (root @ root.T).astype(jnp.float32)
    if found.dimension > _NEWTON and not found.shape:
        rule = NewtonCG(_INNER // 2, Fixed(metric), structure.squares)
        yield Candidate("Newton by conjugate gradients in a shared metric", rule, turn=0)
    if not found.shape:
        rule = BarzilaiBorwein(jnp.asarray(1.0, problem.precision), Fixed(metric))
        yield Candidate("Barzilai-Borwein in a shared metric", rule, trainable=True, turn=0)
    reach = 10 * found.unit * found.dimension**0.5
    for memory in (3, 10):
        rule = dataclasses.replace(quasi_newton_in(root, found.shape, reach), memory_size=memory)
        name = f"quasi-Newton in a shared metric, {memory} pairs"
        yield Candidate(name, rule, trainable=True, turn=2 if memory > 3 else 1)


def _heavy_ball(found: Survey) -> Candidate:
    rule = HeavyBall(jnp.asarray(1 / found.smoothness), jnp.asarray(0.9))
    grid = [
        np.array([factor / found.smoothness, momentum])
        for momentum in (0.8, 0.7, 0.6, 0.9, 0.95)
        for factor in (1.6, 2.5, 4.0, 6.3, 1.0)
    ]
    return Candidate("heavy ball", rule, True, variants=tuple(grid), turn=2)


def scheduled(candidate: Candidate, iterations: float) -> Candidate | None:
    """The same with numbers of its own for every iteration, to be learned, if it has any."""
    if not isinstance(candidate.rule, HeavyBall):
        return None
    rule = LearnedHeavyBall.around(candidate.rule, int(min(iterations, _TIMES)))
    name = f"{candidate.name}, learned schedule"
    return Candidate(name, rule, trainable=True)


def in_single_precision(candidate: Candidate, problem: Problem, dimension: int) -> Candidate | None:
    """The same with shorter numbers in its products, if it has a matrix of its own."""
    rule = candidate.rule
    if problem.precision == "float32" or dimension < _WORTH_CASTING:
        return None
    if isinstance(rule, SharedADMM | FrontADMM | ProgrammeADMM):
        changed = dataclasses.replace(rule, single=True)
    elif isinstance(rule, MetricQuasiNewton) and rule.root.ndim == 2:
        fields = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
        changed = SinglePrecisionQuasiNewton(**fields)
    else:
        return None
    return dataclasses.replace(
        candidate,
        name=f"{candidate.name}, single precision",
        rule=changed,
        classical=False,
        variants=(),
    )


def in_one_step(candidate: Candidate) -> Candidate | None:
    """The same with proximal maps of one Newton step, if it has such."""
    if not isinstance(candidate.rule, FrontADMM):
        return None
    return dataclasses.replace(
        candidate,
        name=f"{candidate.name}, one Newton step",
        rule=dataclasses.replace(candidate.rule, newton=1),
        classical=False,
        variants=(),
    )


def _split_front(front: AffineFront, kind: str) -> Iterator[Candidate]:
    """Only where all functions seem convex, and those that bend or curve determine the point."""
    weights = np.where(np.arange(len(front.matrix)) < front.bent, front.typical, front.curvature)
    curvatures = np.linalg.eigvalsh(front.matrix.T @ (weights[:, None] * front.matrix))
    if not front.convex or curvatures[0] * _WORST < curvatures[-1]:
        return
    # Races and checks see it if proximal maps need more steps than the usual ones.
    rule = FrontADMM.of(front, front.typical, kind=kind, guarded=False)
    shares = sorted(np.geomspace(1e-2, 1e2, 17), key=lambda share: abs(np.log(share)))
    grid = [np.array([np.log(s * front.typical), r]) for s in shares for r in (1.85, 1.6)]
    name = "ADMM on an affine image, factored once"
    yield Candidate(name, rule, True, trainable=True, variants=tuple(grid), turn=0)


def started(candidate: Candidate, problem: Problem, found: Survey) -> Candidate:
    """The same from the start that the survey predicts."""
    with working_precision(problem):
        rule = Predicted(
            candidate.rule,
            jnp.asarray(found.bias, problem.precision),
            jnp.asarray(found.weights, problem.precision),
            jnp.asarray(found.exponents, jnp.int32),
            found.unit,
            1 / found.smoothness,
        )
    words = "predicted start" if found.exponents.size else "learned start"
    return Candidate(f"{candidate.name}, {words}", rule, trainable=candidate.trainable)


def tuned(candidate: Candidate, hyper: np.ndarray, problem: Problem) -> Candidate:
    """The same with other numbers."""
    with working_precision(problem):
        numbers = jnp.asarray(hyper, hyper_of(candidate.rule).dtype)
        return dataclasses.replace(candidate, rule=with_hyper(candidate.rule, numbers))


def per_coordinate(candidate: Candidate, structure: Structure) -> Candidate:
    """A splitting method with a penalty for each coordinate or row, where the parts allow it."""
    rule = _widened(candidate.rule, structure)
    return candidate if rule is candidate.rule else dataclasses.replace(candidate, rule=rule)


def _widened(rule: Rule, structure: Structure) -> Rule:
    if isinstance(rule, StartsElsewhere):
        inner = _widened(rule.rule, structure)
        return rule if inner is rule.rule else dataclasses.replace(rule, rule=inner)
    if isinstance(rule, ProgrammeADMM):
        early = jnp.broadcast_to(rule.relaxation, (_TIMES,))
        wide = jnp.broadcast_to(rule.log_penalty, (rule.groups,))
        return dataclasses.replace(rule, log_penalty=wide, relaxation=early)
    if isinstance(rule, FrontADMM):
        number = len(rule.matrix.array)
    elif isinstance(rule, SharedADMM) and (structure.penalty_separable or rule.total is not None):
        number = structure.dimension
    else:
        return rule
    wide = jnp.broadcast_to(rule.log_penalty, (number,))
    return dataclasses.replace(rule, log_penalty=wide)
