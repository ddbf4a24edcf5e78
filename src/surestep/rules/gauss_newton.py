"""The Gauss-Newton method, for losses that are seen to be sums of squares."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.base.errors import ConfigurationError
from surestep.problem import Oracle, Vector
from surestep.problem.squares import squares_of
from surestep.rules.base import Need, Rule, State


class GaussNewtonState(State):
    """The point alone: everything else is computed there."""

    x: Vector


class GaussNewton(Rule):
    """The method of Gauss and Newton, damped as Levenberg's: full steps, for fits of few numbers.

    The numbers whose squares add up to the loss are found in the loss itself. Their linearisation
    at the point gives a least-squares problem, whose solution is the next point. The loss may rise,
    so it is meant for the inside of a `Checked`. The linearisation is counted as one gradient for
    each coordinate.

    **Arguments:**

    - `damping`: what is added to the diagonal of the least-squares problem's matrix, as a share of
      the diagonal's mean; a number, or a scalar array if it is to be learned.

    ```python
    import surestep as ss

    rule = ss.rules.GaussNewton(damping=1e-6)
    checked = ss.rules.Checked(rule, fallback=ss.rules.LBFGS(), at=8, tolerance=1e-6)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("smooth",)

    damping: float | Float[Array, ""] = 1e-8

    def init(self, oracle: Oracle, x: Vector) -> GaussNewtonState:
        """At rest in `x`."""
        return GaussNewtonState(x)

    def step(self, oracle: Oracle, state: GaussNewtonState) -> GaussNewtonState:
        """To the solution of the linearised problem."""
        x = state.x
        oracle.spend(gradients=1 + x.size)
        misfit, push = linearised(oracle, x)
        identity = jnp.eye(x.size, dtype=x.dtype)
        # As gradients are constants while a rule is trained, so are linearisations.
        rows, misfit = jax.lax.stop_gradient((jax.vmap(push)(identity), misfit))
        gram, slope = rows @ rows.T, rows @ misfit
        typical = jnp.trace(gram) / x.size
        added = jnp.maximum(self.damping, 0.0) * typical
        move = jax.scipy.linalg.solve(gram + added * identity, slope, assume_a="pos")
        careful = slope / jnp.where(typical > 0, typical * x.size, 1.0)
        return GaussNewtonState(x - jnp.where(jnp.all(jnp.isfinite(move)), move, careful))


def linearised(oracle: Oracle, x: Vector) -> tuple[Float[Array, " m"], Any]:
    """The numbers whose squares add up to the loss, and how they change along a direction."""

    def squares(x: Vector) -> Float[Array, " m"]:
        found = squares_of(oracle.problem, oracle.unravel(x), oracle.theta)
        if found is None:
            raise ConfigurationError(
                f"the loss of {type(oracle.problem).__name__} is not seen to be a sum of squares, "
                "which the Gauss-Newton method is for"
            )
        return found

    return jax.linearize(squares, x)
