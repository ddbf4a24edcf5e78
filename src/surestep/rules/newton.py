"""Newton's method, with the Hessian of the instance itself."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.problem import Oracle, Vector
from surestep.rules.base import GradientState, Need, Rule


class Newton(Rule):
    """Newton's method without a line search: full steps, for small problems from good starts.

    Where the Hessian is not positive definite the step is one of gradient descent. The loss may
    rise, so it is meant for the inside of a `Checked`, whose fallback takes over where full steps
    fail. Computing a Hessian is counted as one gradient for each coordinate.

    **Arguments:**

    - `anew`: whether the Hessian is computed anew in every iteration. If not, that of the start
      serves for all of them (the chord method).

    ```python
    import surestep as ss

    rule = ss.rules.Newton(anew=False)
    checked = ss.rules.Checked(rule, fallback=ss.rules.LBFGS(), at=8, tolerance=1e-6)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("smooth",)

    anew: bool = eqx.field(static=True, default=True)

    def init(self, oracle: Oracle, x: Vector) -> GradientState:
        """The Hessian at the start, inverted."""
        value, gradient = oracle.value_and_gradient(x)
        return GradientState(x, value, gradient, _inverse_hessian(oracle, x))

    def step(self, oracle: Oracle, state: GradientState) -> GradientState:
        """A full step."""
        x = state.x - state.memory @ state.gradient
        value, gradient = oracle.value_and_gradient(x)
        inverse = _inverse_hessian(oracle, x) if self.anew else state.memory
        return GradientState(x, value, gradient, inverse)


def _inverse_hessian(oracle: Oracle, x: Vector) -> Float[Array, "n n"]:
    oracle.spend(gradients=x.size)
    slope = jax.grad(oracle.unmetered_value)
    identity = jnp.eye(x.size, dtype=x.dtype)
    found = jax.vmap(lambda column: jax.jvp(slope, (x,), (column,))[1])(identity)
    # As gradients are constants while a rule is trained, so are Hessians.
    hessian = jax.lax.stop_gradient((found + found.T) / 2)
    half = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(hessian), identity, lower=True)
    inverse = half.T @ half
    largest = jnp.max(jnp.sum(jnp.abs(hessian), axis=1))
    careful = identity / jnp.where(largest > 0, largest, 1.0)
    return jnp.where(jnp.all(jnp.isfinite(inverse)), inverse, careful)
