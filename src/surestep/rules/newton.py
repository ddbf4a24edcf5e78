"""Newton's method, with the Hessian of the instance itself."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.base.errors import ConfigurationError
from surestep.problem import Oracle, Vector
from surestep.rules.base import Fixed, GradientState, Need, Rule, State, product
from surestep.rules.gauss_newton import linearised
from surestep.rules.limited_memory import Memory
from surestep.rules.quasi_newton import Pairs


class Newton(Rule):
    """Newton's method without a line search: full steps, for small problems from good starts.

    Where the Hessian is not positive definite the step is one of gradient descent. The loss may
    rise, so it is meant for the inside of a `Checked`, whose fallback takes over where full steps
    fail. Computing a Hessian is counted as one gradient for each coordinate.

    **Arguments:**

    - `anew`: whether the Hessian is computed anew in every iteration. If not, that of the start
      serves for all of them (the chord method).
    - `pairs`: with the Hessian of the start alone, how many pairs of moves and gradient changes
      correct it on the way, as L-BFGS does. 0 corrects nothing.

    ```python
    import surestep as ss

    rule = ss.rules.Newton(anew=False, pairs=3)
    checked = ss.rules.Checked(rule, fallback=ss.rules.LBFGS(), at=8, tolerance=1e-6)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("smooth",)

    anew: bool = eqx.field(static=True, default=True)
    pairs: int = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        """Refuse corrections of what is computed anew."""
        if self.pairs < 0 or (self.anew and self.pairs):
            raise ConfigurationError(
                "pairs correct the Hessian of the start: they are 0 or more, and 0 where it is "
                f"computed anew, not {self.pairs}"
            )

    def init(self, oracle: Oracle, x: Vector) -> GradientState:
        """The Hessian at the start, inverted."""
        value, gradient = oracle.value_and_gradient(x)
        inverse = _inverse_hessian(oracle, x)
        pairs = None
        if self.pairs:
            none = Memory.empty(self.pairs, x, jnp.ones((), x.dtype), metric=True)
            pairs = Pairs(none, x, gradient, inverse @ gradient)
        return GradientState(x, value, gradient, (inverse, pairs))

    def step(self, oracle: Oracle, state: GradientState) -> GradientState:
        """A full step."""
        inverse, pairs = state.memory
        move = image = inverse @ state.gradient
        if pairs is not None:
            pairs = pairs.moved(state.x, state.gradient, image)
            move = pairs.memory.descent(state.gradient, image)
        x = state.x - move
        value, gradient = oracle.value_and_gradient(x)
        inverse = _inverse_hessian(oracle, x) if self.anew else inverse
        return GradientState(x, value, gradient, (inverse, pairs))


class NewtonCGState(State):
    """The point alone: everything else is computed there."""

    x: Vector


class NewtonCG(Rule):
    """Newton's method whose steps are some conjugate gradients each, for large problems.

    A step is `inner` iterations of preconditioned conjugate gradients on the Newton system, of
    products with the Hessian that no matrix is made for. The preconditioner is a metric that all
    instances share. Full steps without a line search, so it is meant for the inside of a
    `Checked`. Every product is counted as a gradient. Where the loss bends downwards along a
    direction, the step ends before it; if that is the first one, it is that direction.

    **Arguments:**

    - `inner`: conjugate gradient iterations of a step.
    - `metric`: an approximation of inverse Hessians, a matrix or the diagonal of one; none is the
      identity.
    - `squares`: whether the products are those of the Gauss-Newton method, for a loss that is a sum
      of squares: they never bend downwards.

    ```python
    import surestep as ss

    rule = ss.rules.NewtonCG(inner=8)
    checked = ss.rules.Checked(rule, fallback=ss.rules.LBFGS(), at=6, tolerance=1e-6)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("smooth",)

    inner: int = eqx.field(static=True, default=8)
    metric: Fixed | None = None
    squares: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        """Refuse steps of nothing."""
        if self.inner < 1:
            raise ConfigurationError(f"a step takes at least 1 inner iteration, not {self.inner}")

    def init(self, oracle: Oracle, x: Vector) -> NewtonCGState:
        """At rest in `x`."""
        return NewtonCGState(x)

    def step(self, oracle: Oracle, state: NewtonCGState) -> NewtonCGState:
        """Some conjugate gradients, and a full step."""
        oracle.spend(gradients=1 + self.inner)
        gradient, bend = (_gauss_newton if self.squares else _newton)(oracle, state.x)

        def turn(_: Array, carry: Any) -> Any:
            move, rest, direction, size, stopped = carry
            bent = bend(direction)
            curvature = jnp.vdot(direction, bent)
            # Where nothing is left, or the loss bends downwards, the step ends.
            stopped = stopped | ~(curvature > 0)
            along = jnp.where(stopped, 0.0, size / jnp.where(curvature > 0, curvature, 1.0))
            rest = rest - along * bent
            image = self._image(rest)
            after = jnp.vdot(rest, image)
            share = after / jnp.where(size > 0, size, 1.0)
            return move + along * direction, rest, image + share * direction, after, stopped

        first = self._image(gradient)
        begun = (jnp.zeros_like(first), gradient, first, jnp.vdot(gradient, first))
        started = (*begun, jnp.zeros((), bool))
        move = jax.lax.fori_loop(0, self.inner, turn, started)[0]
        still = jnp.all(move == 0)
        return NewtonCGState(state.x - jnp.where(still, first, move))

    def _image(self, vector: Vector) -> Vector:
        if self.metric is None:
            return vector
        metric = self.metric.array
        return metric * vector if metric.ndim == 1 else product(metric, vector)


def _newton(oracle: Oracle, x: Vector) -> tuple[Vector, Callable[[Vector], Vector]]:
    """The gradient, and the Hessian's product with a vector."""
    return jax.linearize(jax.grad(oracle.unmetered_value), x)


def _gauss_newton(oracle: Oracle, x: Vector) -> tuple[Vector, Callable[[Vector], Vector]]:
    """The same without second derivatives of the numbers that are squared."""
    misfit, push = linearised(oracle, x)
    pull = jax.linear_transpose(push, x)
    return 2 * pull(misfit)[0], lambda vector: 2 * pull(push(vector))[0]


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
