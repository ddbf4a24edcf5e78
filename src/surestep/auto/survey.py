"""A survey of a problem on a few instances of its prior set: all that an automatic rule needs.

It finds solutions with a classical solver that runs long, how the loss bends there, and from these
a metric, a predictor of solutions, and numbers that make a goal and a horizon sensible. It looks
at the prior set alone, so whatever is chosen by it can be certified.
"""

import dataclasses
import math
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from surestep.auto.predictor import fit_predictor
from surestep.auto.trusted import side_by_side, solve_some
from surestep.base.clock import Stopwatch
from surestep.base.errors import ProblemError
from surestep.base.progress import Reporter
from surestep.problem import (
    CompositeProblem,
    Oracle,
    PriorSet,
    Problem,
    Theta,
    at_start,
    count,
    instance,
    working_precision,
)
from surestep.rollout.batched import rollouts
from surestep.rules import (
    CosineQuasiNewton,
    GradientDescent,
    MetricQuasiNewton,
    Safeguarded,
)
from surestep.rules.base import GradientRule
from surestep.rules.cosine import transform, transformed_axes
from surestep.rules.predicted import features_of

DENSE, LARGE = 300, 2000
"""The largest dimension for which a metric is a full matrix: anyhow, and where time allows it."""
_POWERS = 30  # products of the power method
_MATRIX = 0.3  # the share of the solver's time that a large matrix may take
_NUMBERS = 20_000_000  # of all points of a survey together
_TRIED = 30  # iterations that metrics are compared by
_FEW, _FEWEST = 16, 4  # instances whose curvature is looked at, where points are large


@dataclasses.dataclass(frozen=True)
class Survey:
    """What was found."""

    dimension: int
    composite: bool
    smoothness: float
    """The largest curvature that was met (of the smooth part)."""
    starts: np.ndarray
    """Losses at the start."""
    minima: np.ndarray
    """Losses that the solver ended with."""
    slopes: np.ndarray
    """Norms of the gradients at the start."""
    root: np.ndarray
    """A root of the inverse of the mean Hessian at the solutions; a vector where that is large."""
    shape: tuple[int, ...]
    """Of pictures: the shape in whose cosines the root is diagonal. Empty: it is in x's own."""
    bias: np.ndarray
    weights: np.ndarray
    exponents: np.ndarray
    """The predictor of solutions, see `Predicted`."""
    unit: float
    """How far solutions are from the start."""
    sha256: str
    """The fingerprint of the instances."""
    fitted: int
    """Metric and predictor were computed from so many of the instances, the first ones."""
    seconds: float = 0.0
    """What the survey took."""
    allowed: float = math.inf
    """How many seconds the solver was allowed."""
    pace: float = 0.0
    """Seconds of the solver's iteration on one instance, in a batch."""
    each: float = 0.0
    """Seconds that the solver took for an instance, in a batch."""
    drawing: float = 0.0
    """Seconds that drawing an instance takes."""
    data: PriorSet | None = dataclasses.field(default=None, compare=False, repr=False)
    """The instances."""

    @property
    def gap(self) -> float:
        """How much there is to gain on a typical instance."""
        return float(np.median(self.starts - self.minima))


def survey(
    problem: Problem,
    data: PriorSet,
    block: int = 64,
    seconds: float = math.inf,
    report: Reporter | None = None,
) -> Survey:
    """Look at the instances of a prior set, or at as many of them as can be solved in a time.

    **Arguments:**

    - `problem`, `data`: the problem and the instances.
    - `block`: of how many of them a batch is made, at most.
    - `seconds`: how long the solver may take.
    - `report`: where progress is told; by default nowhere.
    """
    composite = isinstance(problem, CompositeProblem)
    began = time.monotonic()
    with working_precision(problem):
        first = _starts(problem, data.thetas)
        # What bends at the start is seen on few instances where each of them takes long.
        few = data.size if first.shape[1] <= DENSE else min(data.size, _FEW)
        block = side_by_side(first.shape[1], _even(few, block))
        largest = _largest_curvatures(
            problem, instance(data.thetas, slice(few)), first[:few], block
        )
        smoothness = float(np.max(np.asarray(largest, np.float64))) * 1.05
        if not np.isfinite(smoothness) or smoothness <= 0:
            raise ProblemError(
                "the loss does not bend at the start on any instance (its second derivatives are "
                "0 or not finite there), so no step size can be found: scale the loss, or move x0"
            )
        solved = solve_some(problem, smoothness, data.thetas, seconds, report)
        points, minima, starts = solved.points, solved.losses, solved.starts
        if len(minima) < data.size:
            data = PriorSet(instance(data.thetas, slice(len(minima))), seed=data.seed)
            first = first[: data.size]
        good = np.all(np.isfinite(points), axis=1) & np.isfinite(minima)
        if good.sum() < max(2, data.size // 2):
            raise ProblemError(
                f"the classical solver fails on {int((~good).sum())} of {data.size} instances: "
                "is the loss bounded below and smooth?"
            )
        # A third is kept to see how well it all works on other instances.
        fitted = math.ceil(2 * data.size / 3)
        good[fitted:] = False
        whole = data.size
        if points.shape[1] > DENSE:
            # Where Hessians are too large to be looked at, the power method looks at solutions too.
            few = min(data.size, _FEW)
            last = jnp.asarray(points[:few], first.dtype)
            watch = Stopwatch()
            ends = np.asarray(
                _largest_curvatures(problem, instance(data.thetas, slice(few)), last, block)
            )
            smoothness = max(smoothness, 1.05 * float(np.nanmax(ends)))
            whole = _affordable(points.shape[1], watch.seconds / few, _MATRIX * seconds)
        form = () if composite else _shape_of(problem, data.thetas)
        root, shape, steepest = _metric(
            problem, data.thetas, jnp.asarray(points), good, form, smoothness, whole
        )
        features = np.asarray(jax.vmap(features_of)(data.thetas), np.float64)
        moves = points - np.asarray(first, np.float64)
        unit = float(np.sqrt(np.mean(moves[good] ** 2))) or 1.0
        bias, weights, exponents = fit_predictor(features[good], moves[good] / unit)
        return Survey(
            points.shape[1], composite, max(smoothness, 1.05 * steepest), starts, minima,
            np.asarray(_slopes(problem, data.thetas), np.float64), root, shape, bias, weights,
            exponents, unit, data.sha256, fitted, time.monotonic() - began, seconds, solved.pace,
            solved.each, 0.0, data,
        )  # fmt: skip


@eqx.filter_jit
def _starts(problem: Problem, thetas: Theta) -> Float[Array, "instance n"]:
    return jax.vmap(lambda theta: ravel_pytree(problem.start(theta))[0])(thetas)


@eqx.filter_jit
def _slopes(problem: Problem, thetas: Theta) -> Float[Array, " instance"]:
    return jax.lax.map(lambda theta: at_start(problem, theta)[1], thetas)


@eqx.filter_jit
def _largest_curvatures(
    problem: Problem, thetas: Theta, points: Float[Array, "instance n"], block: int
) -> Float[Array, " instance"]:
    """The largest curvature at a point of every instance, by the power method."""

    def one(given: tuple[Theta, Array]) -> Array:
        theta, x = given
        oracle = Oracle(problem, theta)
        slope = jax.grad(_smooth(problem, oracle))

        def turn(direction: Array, _: None) -> tuple[Array, Array]:
            bent = jax.jvp(slope, (x,), (direction,))[1]
            size = jnp.linalg.norm(bent)
            return bent / jnp.where(size > 0, size, 1.0), size

        noise = jax.random.normal(jax.random.key(0), x.shape, x.dtype)
        return jax.lax.scan(turn, noise / jnp.linalg.norm(noise), None, length=_POWERS)[1][-1]

    return jax.lax.map(one, (thetas, points), batch_size=block)


def _even(size: int, most: int) -> int:
    """A block size without a rest, because a rest is compiled again; or the largest, if none is."""
    best = max(block for block in range(1, min(size, most) + 1) if size % block == 0)
    return best if 4 * best >= most else min(size, most)


def _smooth(problem: Problem, oracle: Oracle):  # noqa: ANN202
    part = problem.smooth if isinstance(problem, CompositeProblem) else problem.loss
    return lambda x: part(oracle.unravel(x), oracle.theta)


def surveyed_instances(dimension: int, most: int) -> int:
    """How many instances are surveyed: fewer where points are large."""
    return min(most, max(12, _NUMBERS // dimension))


def _shape_of(problem: Problem, thetas: Theta) -> tuple[int, ...]:
    """The shape of x where it could be a picture or a signal that is too large for a matrix."""
    leaves = jax.tree.leaves(jax.eval_shape(problem.start, instance(thetas, 0)))
    shape = tuple(leaves[0].shape)
    large = math.prod(shape) > DENSE
    return shape if len(leaves) == 1 and large and transformed_axes(shape) else ()


def _affordable(dimension: int, seconds: float, allowed: float) -> int:
    """Of how many instances a large Hessian can be computed, if the power method took so long."""
    if dimension > LARGE:
        return 0
    number = int(min(_FEW, allowed / max(seconds * dimension / _POWERS, 1e-9)))
    return number if number >= _FEWEST else 0


def _metric(
    problem: Problem,
    thetas: Theta,
    points: Array,
    good: np.ndarray,
    shape: tuple[int, ...],
    smoothness: float,
    whole: int,
) -> tuple[np.ndarray, tuple[int, ...], float]:
    """A root of the inverse mean Hessian at the solutions, and the largest curvature there.

    Hessians are looked at on so many instances as a `whole`; if that is 0, the root is diagonal: a
    picture's for cosines or for pixels, whichever is better on instances that neither was made
    from.
    """
    if not whole:
        roots = {kind: _diagonal_root(problem, thetas, points, good, kind) for kind in {(), shape}}
        best = _better(
            problem, thetas, good, {k: root for k, (root, _) in roots.items()}, smoothness
        )
        return roots[best][0], best, roots[()][1]
    places = jnp.asarray(np.flatnonzero(good)[:whole])
    found = np.asarray(_hessians(problem, instance(thetas, places), points[places]), np.float64)
    mean = np.mean(found, axis=0)
    values, vectors = np.linalg.eigh((mean + mean.T) / 2)
    floor = 1e-6 * np.max(np.abs(values)) or 1.0
    if len(mean) > DENSE:
        return vectors / np.sqrt(np.maximum(np.abs(values), floor)), (), 0.0
    steepest = max(float(np.max(np.abs(np.linalg.eigvalsh(one)))) for one in found[:_FEW])
    return vectors / np.sqrt(np.maximum(np.abs(values), floor)), (), steepest


def _diagonal_root(
    problem: Problem, thetas: Theta, points: Array, good: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, float]:
    places = jnp.asarray(np.flatnonzero(good)[:_FEW])
    found = _diagonals(problem, instance(thetas, places), points[places], shape)
    found = np.asarray(found, np.float64)
    mean = np.mean(found, axis=0)
    floor = 1e-4 * np.max(np.abs(mean)) or 1.0
    return 1 / np.sqrt(np.maximum(np.abs(mean), floor)), float(np.max(np.abs(found)))


def _better(
    problem: Problem,
    thetas: Theta,
    good: np.ndarray,
    roots: dict[tuple[int, ...], np.ndarray],
    smoothness: float,
) -> tuple[int, ...]:
    """The metric whose losses fall lower on instances that no metric was made from."""
    if len(roots) == 1:
        return next(iter(roots))
    others = np.flatnonzero(~good)
    places = jnp.asarray(others[-16:] if others.size else [0])
    few, ends = instance(thetas, places), {}
    for shape, root in roots.items():
        rule = Safeguarded(
            quasi_newton_in(jnp.asarray(root, problem.precision), shape),
            GradientDescent(1 / smoothness),
        )
        shown = rollouts(rule, problem, few, _TRIED, side_by_side(root.size, 16))
        ends[shape] = np.asarray(shown.losses, np.float64)[:, -1]
    best = np.minimum.reduce(list(ends.values()))
    # By how often each is the lower one, and by sums where that is undecided.
    return min(ends, key=lambda shape: (np.sum(ends[shape] > best), np.sum(ends[shape])))


def quasi_newton_in(root: Array, shape: tuple[int, ...], first: float = 1e6) -> GradientRule:
    """L-BFGS's direction in the metric of a root, of a matrix, of pixels or of cosines."""
    if shape:
        return CosineQuasiNewton.of(root, shape, first)
    return MetricQuasiNewton.of(root, first)


@eqx.filter_jit
def _hessians(problem: Problem, thetas: Theta, points: Array) -> Array:
    def one(pair: tuple[Theta, Array]) -> Array:
        theta, x = pair
        return jax.hessian(_smooth(problem, Oracle(problem, theta)))(x)

    return jax.lax.map(one, (thetas, points), batch_size=_even(count(thetas), 16))


@eqx.filter_jit
def _diagonals(problem: Problem, thetas: Theta, points: Array, shape: tuple[int, ...]) -> Array:
    """Hessians' diagonals, for pixels or for cosines, estimated with random signs.

    The method of Bekas, Kokiopoulou and Saad. Signs differ from instance to instance, so that what
    is wrong with one estimate averages out.
    """

    def one(given: tuple[Theta, Array, Array]) -> Array:
        theta, x, key = given
        slope = jax.grad(_smooth(problem, Oracle(problem, theta)))

        def product(sign: Array) -> Array:
            direction = transform(sign, shape, back=True) if shape else sign
            bent = jax.jvp(slope, (x,), (direction,))[1]
            return sign * (transform(bent, shape) if shape else bent)

        signs = jax.random.rademacher(key, (32, x.size), x.dtype)
        return jnp.mean(jax.lax.map(product, signs), axis=0)

    keys = jax.random.split(jax.random.key(1), count(thetas))
    batch = side_by_side(points.shape[1], _even(count(thetas), 16))
    return jax.lax.map(one, (thetas, points, keys), batch_size=batch)
