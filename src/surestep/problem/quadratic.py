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

from surestep.problem.base import Point, Problem, Theta, instance
from surestep.problem.kinds import CompositeProblem

Vector = Float[np.ndarray, " n"]
Rows = Float[np.ndarray, "m n"]

_SIZES = (0.0, 1e-3, 1.0, 1e3, 1e6)  # of steps away from the start
_WEIGHTS = (0.0, 1.0, 0.3, 2.0, -1.5, 10.0)  # of mixtures of two instances; the first two are they
_QUERIES = 6  # points or mixtures that one program is asked about
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


def hessian_products(problem: Problem, theta: Theta, rows: Rows) -> Rows:
    """The `H` of an instance that is quadratic, times some vectors."""
    found = []
    for first in range(0, len(rows), _QUERIES):
        # The last vectors are filled up, so that one compiled program serves for all.
        asked = np.zeros((_QUERIES, rows.shape[1]))
        part = rows[first : first + _QUERIES]
        asked[: len(part)] = part
        products = _probe(problem, _repeated(theta), np.zeros_like(asked), asked)[2]
        found.append(products[: len(part)])
    return np.concatenate(found)


def hessian(problem: Problem, theta: Theta, dimension: int) -> Float[np.ndarray, "n n"]:
    """The `H` of an instance that is quadratic."""
    kind = problem.precision
    unit = np.eye(dimension, dtype=kind)
    found = np.asarray(_columns(problem, theta, np.zeros(dimension, kind), unit), np.float64)
    return (found + found.T) / 2


@eqx.filter_jit
def _columns(
    problem: Problem, theta: Theta, x: Float[Any, " n"], rows: Float[Any, "n n"]
) -> Float[Array, "n n"]:
    """A Hessian's columns, some at a time."""
    product = jax.linearize(jax.grad(flat_smooth(problem, theta)), x)[1]
    return jax.lax.map(product, rows, batch_size=min(_AT_ONCE, len(rows)))


@np.errstate(all="ignore")
def try_quadratic(problem: Problem, thetas: Theta) -> Errors:
    """Try it at random points, near and far, of every instance of a stacked set."""
    random, errors = np.random.default_rng(0), np.zeros(3)
    thetas = jax.tree.map(np.asarray, thetas)
    starts = np.asarray(_starts(problem, thetas), np.float64)
    direction, wanted = random.normal(size=starts.shape[1]), None
    for number, start in enumerate(starts):
        theta = instance(thetas, number)
        steps = (1 + np.max(np.abs(start))) * random.normal(size=(len(_SIZES), start.size))
        points = start + np.asarray(_SIZES)[:, None] * steps
        quadratic, bent = _try_points(problem, theta, points, direction)
        wanted = bent if wanted is None else wanted
        affine = _try_mixtures(problem, instance(thetas, 0), theta, direction)
        errors = np.maximum(errors, [quadratic, _relative(bent - wanted, _norm(wanted)), affine])
    return Errors(*map(float, errors))


@eqx.filter_jit
def _starts(problem: Problem, thetas: Theta) -> Float[Array, "instance n"]:
    return jax.lax.map(lambda theta: flat_start(problem, theta), thetas)


def _try_points(
    problem: Problem, theta: Theta, points: Rows, direction: Vector
) -> tuple[float, Vector]:
    """How wrong it is that an instance is quadratic, and its Hessian times the direction."""
    points = np.concatenate([np.zeros((1, points.shape[1])), points]).astype(problem.precision)
    same, along = _repeated(theta), np.tile(direction, (_QUERIES, 1))
    values, gradients, bent = _probe(problem, same, points, along)
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
    weights, along = np.asarray(_WEIGHTS), np.tile(direction, (_QUERIES, 1))

    def mix(a: Any, b: Any) -> np.ndarray:
        if a.dtype.kind != "f":
            return _repeated(a)
        return a + weights.reshape(-1, *(1,) * a.ndim).astype(a.dtype) * (b - a)

    mixed = jax.tree.map(mix, one, other)
    ends = _probe(problem, mixed, np.zeros_like(along), along)[1]
    line = ends[0] + weights[:, None] * (ends[1] - ends[0])
    return _relative(ends - line, _norm(ends[0]) + _norm(ends[1]))


def _repeated(theta: Theta) -> Theta:
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (_QUERIES, *np.shape(leaf))), theta)


def _probe(problem: Problem, thetas: Theta, points: Rows, directions: Rows) -> list[np.ndarray]:
    """Values, gradients and products of Hessians with directions."""
    kind = problem.precision
    found = _probed(problem, thetas, points.astype(kind), directions.astype(kind))
    return [np.asarray(part, np.float64) for part in found]


@eqx.filter_jit
def _probed(
    problem: Problem, thetas: Theta, points: Float[Any, "query n"], along: Float[Any, "query n"]
) -> tuple[Array, Array, Array]:
    def one(given: tuple[Theta, Array, Array]) -> tuple[Array, Array, Array]:
        theta, x, direction = given
        both = jax.value_and_grad(flat_smooth(problem, theta))
        (value, gradient), (_, bent) = jax.jvp(both, (x,), (direction,))
        return value, gradient, bent

    return jax.lax.map(one, (thetas, points, along))


def _norm(rows: np.ndarray) -> Any:
    return np.linalg.norm(rows, axis=-1)


def _relative(errors: np.ndarray, sizes: Any) -> float:
    """The largest norm of an error, relative to a size."""
    return float(np.max(_norm(errors) / np.maximum(sizes, np.finfo(np.float64).tiny)))
