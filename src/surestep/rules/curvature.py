"""Classical rules that use curvature: L-BFGS and conjugate gradients for least squares."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Scalar

from surestep.problem import Oracle, Vector
from surestep.problem.oracle import Image
from surestep.rules.base import GradientState, Need, Rule, State


class LBFGS(Rule):
    """L-BFGS: limited-memory BFGS with a zoom line search, as Optax implements it.

    The line search evaluates as many gradients as it needs, and all of them are counted.

    **Arguments:**

    - `memory_size`: how many pairs of moves and gradient changes are kept.
    - `line_search_steps`: most evaluations of one line search.

    ```python
    import surestep as ss

    rule = ss.rules.LBFGS(memory_size=20)
    ```
    """

    memory_size: int = 10
    line_search_steps: int = 20

    def _transformation(self) -> optax.GradientTransformationExtraArgs:
        search = optax.scale_by_zoom_linesearch(
            max_linesearch_steps=self.line_search_steps, initial_guess_strategy="one"
        )
        return optax.lbfgs(memory_size=self.memory_size, linesearch=search)

    def init(self, oracle: Oracle, x: Vector) -> GradientState:
        """An empty memory at `x`."""
        value, gradient = oracle.value_and_gradient(x)
        return GradientState(x, value, gradient, self._transformation().init(x))

    def step(self, oracle: Oracle, state: GradientState) -> GradientState:
        """A quasi-Newton direction and a line search along it."""
        change: Any
        memory: Any
        change, memory = self._transformation().update(
            state.gradient,
            state.memory,
            state.x,
            value=state.value,
            grad=state.gradient,
            value_fn=oracle.unmetered_value,
        )
        search = memory[-1]
        oracle.spend(gradients=search.info.num_linesearch_steps)
        # The line search has just evaluated the point it ends in: nothing is evaluated twice.
        found = GradientState(state.x + change, search.value, search.grad, memory)
        # Where products of gradients underflow, the direction is not a number; the line search
        # then reports the loss that it began with, which is not that of the point it proposes.
        sound = jnp.all(jnp.isfinite(found.x))
        return jax.tree.map(lambda new, old: jnp.where(sound, new, old), found, state)


class ConjugateState(State):
    """The point, its residual, the pulled-back residual and the search direction."""

    x: Vector
    value: Scalar
    residual: Image
    descent: Vector
    direction: Vector


class ConjugateGradients(Rule):
    """Conjugate gradients for linear least squares (the CGLS recurrence).

    It has no arguments. One product with the matrix and one with its transpose per iteration:
    counted as a gradient. The loss never rises by more than rounding, however long it is iterated.

    ```python
    import surestep as ss

    rule = ss.rules.ConjugateGradients()
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("residual",)

    def scaled(self, descent: Vector) -> Vector:
        """The direction of steepest descent in the rule's metric: here as it is."""
        return descent

    def init(self, oracle: Oracle, x: Vector) -> ConjugateState:
        """The first direction is steepest descent."""
        residual = oracle.residual(x)
        descent = -oracle.residual_pullback(residual)
        return ConjugateState(x, oracle.value(x), residual, descent, self.scaled(descent))

    def step(self, oracle: Oracle, state: ConjugateState) -> ConjugateState:
        """An exact line search, then the next conjugate direction."""
        product = oracle.residual_product(state.direction)
        squared = jnp.vdot(state.descent, self.scaled(state.descent))
        length = _ratio(squared, jnp.vdot(product, product))
        x = state.x + length * state.direction
        residual = state.residual + length * product
        descent = -oracle.residual_pullback(residual)
        steepest = self.scaled(descent)
        turn = _ratio(jnp.vdot(descent, steepest), squared)
        direction = steepest + turn * state.direction
        moved = ConjugateState(x, oracle.value(x), residual, descent, direction)
        # The loss falls with every step, up to rounding. Once it does not, the recurrences have
        # run ahead of the point and would, in the end, lead anywhere: the rule stays and begins
        # anew, from steepest descent.
        falls = moved.value <= (1 + 1e-9) * state.value
        waits = ConjugateState(
            state.x, state.value, state.residual, state.descent, self.scaled(state.descent)
        )
        return jax.tree.map(lambda new, old: jnp.where(falls, new, old), moved, waits)


class PreconditionedConjugateGradients(ConjugateGradients):
    """Preconditioned conjugate gradients (PCG) with a diagonal preconditioner.

    It is fast where the metric is near the inverse of the diagonal of `A'A` and that diagonal is
    near `A'A` itself; `surestep.train.metric` finds one on the prior set. With a metric of ones it
    is `ConjugateGradients`.

    **Arguments:**

    - `metric`: a vector of positive step sizes, one for each coordinate.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.PreconditionedConjugateGradients(jnp.full(20, 0.5))
    ```
    """

    metric: Float[Array, " n"]

    def scaled(self, descent: Vector) -> Vector:
        """Every coordinate by its step size."""
        return self.metric * descent


class MetricConjugateGradients(Rule):
    """Preconditioned conjugate gradients whose diagonal preconditioner is learned.

    Whatever the metric, the loss falls with every iteration and the minimiser is found.

    **Arguments:**

    - `log_metric`: the logarithms of the step sizes, one for each coordinate; learned.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.MetricConjugateGradients(jnp.zeros(20))
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("residual",)

    log_metric: Float[Array, " n"]

    def init(self, oracle: Oracle, x: Vector) -> ConjugateState:
        """As the classical rule."""
        return self._classical().init(oracle, x)

    def step(self, oracle: Oracle, state: ConjugateState) -> ConjugateState:
        """As the classical rule."""
        return self._classical().step(oracle, state)

    def _classical(self) -> PreconditionedConjugateGradients:
        return PreconditionedConjugateGradients(jnp.exp(self.log_metric))


def _ratio(above: Scalar, below: Scalar) -> Scalar:
    # At the exact solution both are 0 and the rule stays where it is.
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1.0), 0.0)
