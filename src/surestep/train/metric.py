"""A metric from the prior set: one step size for each coordinate, for classical rules.

A learned rule may find out during training which coordinates are steep. Opponents that are given
the same knowledge, from the same data, make the comparison fair.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from surestep.base.errors import ConfigurationError
from surestep.problem import CompositeProblem, PriorSet, Problem, Theta, working_precision


def coordinate_steps(
    problem: Problem, data: PriorSet, block: int = 16
) -> Float[Array, " coordinate"]:
    """For each coordinate, one over its mean curvature on the prior set.

    The curvature is the Hessian's diagonal at the start, of the smooth part where there are two:
    for least squares the diagonal of `A'A`, wherever the start is.
    """
    with working_precision(problem):
        curvatures = np.asarray(_mean_curvatures(problem, data.thetas, block), np.float64)
    flat = np.flatnonzero(~(curvatures > 0) | ~np.isfinite(curvatures))
    if flat.size:
        raise ConfigurationError(
            f"the loss does not bend upwards along {flat.size} of {curvatures.size} coordinates "
            f"(the first is number {flat[0]}): there is no step size for them"
        )
    return _array(1 / curvatures, problem.precision)


def safe_steps(steps: Float[Array, " n"], matrix: Float[Array, "m n"]) -> Float[Array, " n"]:
    """The largest multiple of step sizes for which `diag(1 / steps) - A'A` is semidefinite.

    With such steps a proximal gradient step on `0.5 norm(A x - b)^2` plus anything separable
    never raises the loss, as with the step `1 / L`.
    """
    exact = np.asarray(steps, np.float64)
    if not np.all(exact > 0):
        raise ConfigurationError("step sizes must be positive")
    norm = np.linalg.norm(np.asarray(matrix, np.float64) * np.sqrt(exact), 2)
    return _array(exact / norm**2, str(steps.dtype))


def _array(values: Float[np.ndarray, " n"], precision: str) -> Float[Array, " n"]:
    with jax.enable_x64(precision == "float64"):
        return jnp.asarray(values, precision)


@eqx.filter_jit
def _mean_curvatures(problem: Problem, thetas: Theta, block: int) -> Array:
    each = jax.lax.map(lambda theta: _curvatures(problem, theta), thetas, batch_size=block)
    return jnp.mean(each, axis=0)


def _curvatures(problem: Problem, theta: Theta) -> Array:
    """The Hessian's diagonal, one coordinate after the other: no Hessian is held in memory."""
    part = problem.smooth if isinstance(problem, CompositeProblem) else problem.loss
    start, unravel = ravel_pytree(problem.start(theta))
    slope = jax.grad(lambda x: part(unravel(x), theta))

    def along(index: Array) -> Array:
        direction = jnp.zeros_like(start).at[index].set(1.0)
        return jax.jvp(slope, (start,), (direction,))[1][index]

    return jax.lax.map(along, jnp.arange(start.size))
