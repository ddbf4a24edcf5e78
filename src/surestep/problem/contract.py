"""Checks of a problem before work starts: does it keep its contract at the start?"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from surestep.base.errors import ProblemError
from surestep.problem.base import Problem, Theta, count, instance, name_of
from surestep.problem.oracle import Oracle


def check_problem(problem: Problem, thetas: Theta, block: int, moving: bool = True) -> None:
    """Refuse a problem whose loss is not a finite scalar that depends on x.

    It must not be negative either, unless the problem says that it may be.

    Every instance of the set is looked at, at the problem's start. That the loss depends on x
    (`moving`) need not be seen in every part of a set that comes in parts.
    """
    name = name_of(problem)
    theta = instance(thetas, 0)
    start = problem.start(theta)
    shape = eqx.filter_eval_shape(problem.loss, start, theta)
    if not hasattr(shape, "shape") or shape.shape != ():
        found = getattr(shape, "shape", type(shape).__name__)
        raise ProblemError(
            f"{name}.loss must return a single number (shape ()), not shape {found}: "
            "sum or average over what is left"
        )
    if shape.dtype != jnp.dtype(problem.precision):
        raise ProblemError(
            f"{name}.loss returns {shape.dtype}, but the problem's precision is "
            f"{problem.precision}: give the arrays that type, or set `precision`"
        )
    values, finite, moved = map(np.asarray, _at_start(problem, thetas, min(block, count(thetas))))
    _refuse(name, values, np.isnan(values), "is not a number")
    _refuse(name, values, ~np.isfinite(values), "is infinite")
    if problem.nonnegative:
        _refuse(name, values, values < 0, "is negative, and losses must be at least 0")
    _refuse(name, values, ~finite, "has a gradient that is not finite")
    if moving and not moved.any():
        raise ProblemError(
            f"{name}.loss does not change with x: its gradient at the start is 0 on every instance"
        )


def _refuse(name: str, values: np.ndarray, bad: np.ndarray, what: str) -> None:
    if bad.any():
        index = int(np.argmax(bad))
        raise ProblemError(
            f"{name}.loss at the start {what} on {int(bad.sum())} of {bad.size} instances, "
            f"first on instance {index} (loss {values[index]})"
        )


@eqx.filter_jit
def _at_start(problem: Problem, thetas: Theta, block: int) -> tuple[Array, Array, Array]:
    def one(theta: Theta) -> tuple[Array, Array, Array]:
        oracle = Oracle(problem, theta)
        value, gradient = oracle.value_and_gradient(oracle.start)
        return value, jnp.all(jnp.isfinite(gradient)), jnp.any(gradient != 0)

    return jax.lax.map(one, thetas, batch_size=block)
