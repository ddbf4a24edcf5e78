"""Quadratic smooth parts `x'Hx / 2 - c'x + d`: their terms, and trials of whether they are such.

A problem's smooth part is its loss, if it has but one part. It is a function of a flat vector here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Scalar

from surestep.problem.base import Point, Problem, Theta, count, instance
from surestep.problem.kinds import CompositeProblem

Vector = Float[np.ndarray, " n"]

_SIZES = (0.0, 1e-3, 1.0, 1e3, 1e6)  # of steps away from the start
_WEIGHTS = (0.0, 1.0, 0.3, 2.0, -1.5, 10.0)  # of mixtures of two instances; the first two are they
_AT_ONCE = 64  # columns of a Hessian


class Errors(NamedTuple):
    """How wrong it is to say three things, relative to sizes; not finite if a number is not."""

    quadratic: float
    """That instances are quadratic."""
    shared: float
    """That they all have the same Hessian."""
    affine: float
    """That gradients at 0 are affine in the numbers of theta."""


def smooth_part(problem: Problem) -> Callable[[Point, Theta], Scalar]:
    """The smooth part of a composite problem, or the loss of another."""
    return problem.smooth if isinstance(problem, CompositeProblem) else problem.loss


def flat_start(problem: Problem, theta: Theta) -> Float[Array, " n"]:
    """The start, as a flat vector."""
    return ravel_pytree(problem.start(theta))[0]


def flat_smooth(problem: Problem, theta: Theta) -> Callable[[Float[Array, " n"]], Scalar]:
    """The smooth part of an instance, as a function of a flat vector."""
    unravel = ravel_pytree(problem.start(theta))[1]
    return lambda x: smooth_part(problem)(unravel(x), theta)


def linear_term(problem: Problem, theta: Theta) -> Float[Array, " n"]:
    """The `c` of an instance that is quadratic; costs one gradient."""
    return -jax.grad(flat_smooth(problem, theta))(jnp.zeros_like(flat_start(problem, theta)))


def constant_term(problem: Problem, theta: Theta) -> Scalar:
    """The `d` of an instance that is quadratic; costs one value."""
    return flat_smooth(problem, theta)(jnp.zeros_like(flat_start(problem, theta)))


def hessian_product(problem: Problem, theta: Theta, vector: Vector) -> Vector:
    """The `H` of an instance that is quadratic, times a vector."""
    given = jnp.asarray(vector, problem.precision)
    return np.asarray(_products(problem, theta, jnp.zeros_like(given), given[None])[0], np.float64)


def hessian(problem: Problem, theta: Theta) -> Float[np.ndarray, "n n"]:
    """The `H` of an instance that is quadratic, some columns at a time."""
    zero = jnp.zeros_like(flat_start(problem, theta))
    columns = _products(problem, theta, zero, jnp.eye(zero.size, dtype=zero.dtype))
    found = np.asarray(columns, np.float64)
    return (found + found.T) / 2


@eqx.filter_jit
def _products(
    problem: Problem, theta: Theta, x: Float[Array, " n"], rows: Float[Array, "m n"]
) -> Float[Array, "m n"]:
    slope = jax.grad(flat_smooth(problem, theta))
    product = jax.linearize(slope, x)[1]
    return jax.lax.map(product, rows, batch_size=min(_AT_ONCE, len(rows)))


def try_quadratic(problem: Problem, thetas: Theta) -> Errors:
    """Try it at random points, near and far, of every instance of a stacked set."""
    random, errors, first = np.random.default_rng(0), np.zeros(3), instance(thetas, 0)
    dimension = flat_start(problem, first).size
    direction = random.normal(size=dimension)
    wanted = None
    for number in range(count(thetas)):
        theta = instance(thetas, number)
        start = np.asarray(flat_start(problem, theta), np.float64)
        steps = (1 + np.max(np.abs(start))) * random.normal(size=(len(_SIZES), dimension))
        points = start + np.asarray(_SIZES)[:, None] * steps
        quadratic, bent = _try_points(problem, theta, points, direction)
        wanted = bent if wanted is None else wanted
        affine = _try_mixtures(problem, first, theta, direction)
        errors = np.maximum(errors, [quadratic, _relative(bent - wanted, _norm(wanted)), affine])
    return Errors(*map(float, errors))


def _try_points(
    problem: Problem, theta: Theta, points: np.ndarray, direction: Vector
) -> tuple[float, Vector]:
    """How wrong it is that an instance is quadratic, and its Hessian times the direction."""
    points = np.concatenate([np.zeros((1, points.shape[1])), points]).astype(problem.precision)
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(points), *leaf.shape)), theta)
    values, gradients, bent = _probe(problem, same, points, np.tile(direction, (len(points), 1)))
    turned = _probe(problem, same, np.zeros_like(points), points)[2]
    points = points.astype(np.float64)
    change = _norm(turned) + _norm(gradients[0])
    model = values[0] + points @ gradients[0] + np.sum(points * turned, axis=1) / 2
    errors = (
        _relative(bent - bent[0], _norm(bent[0])),
        _relative(gradients - gradients[0] - turned, change),
        _relative((values - model)[:, None], np.abs(values[0]) + _norm(points) * change),
    )
    return float(np.max(errors)), bent[0]


def _try_mixtures(problem: Problem, one: Theta, other: Theta, direction: Vector) -> float:
    """How wrong it is that gradients are affine between two instances and beyond them."""

    def mix(a: Array, b: Array) -> Array:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return jnp.broadcast_to(a, (len(_WEIGHTS), *a.shape))
        weights = jnp.asarray(_WEIGHTS, a.dtype).reshape(-1, *(1,) * a.ndim)
        return a + weights * (b - a)

    rows = np.tile(direction, (len(_WEIGHTS), 1))
    ends = _probe(problem, jax.tree.map(mix, one, other), np.zeros_like(rows), rows)[1]
    line = ends[0] + np.asarray(_WEIGHTS)[:, None] * (ends[1] - ends[0])
    return _relative(ends - line, _norm(ends[0]) + _norm(ends[1]))


def _probe(problem: Problem, thetas: Theta, points: Any, directions: Any) -> list[np.ndarray]:
    """Values, gradients and products of Hessians with directions."""
    kind = problem.precision
    found = _probed(problem, thetas, jnp.asarray(points, kind), jnp.asarray(directions, kind))
    return [np.asarray(part, np.float64) for part in found]


@eqx.filter_jit
def _probed(
    problem: Problem,
    thetas: Theta,
    points: Float[Array, "query n"],
    directions: Float[Array, "query n"],
) -> tuple[Array, Array, Array]:
    def one(given: tuple[Theta, Array, Array]) -> tuple[Array, Array, Array]:
        theta, x, direction = given
        both = jax.value_and_grad(flat_smooth(problem, theta))
        (value, gradient), (_, bent) = jax.jvp(both, (x,), (direction,))
        return value, gradient, bent

    return jax.lax.map(one, (thetas, points, directions))


def _norm(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows, axis=-1)


def _relative(errors: np.ndarray, sizes: np.ndarray) -> float:
    """The largest norm of an error, relative to a size."""
    return float(np.max(_norm(errors) / np.maximum(sizes, np.finfo(np.float64).tiny)))
