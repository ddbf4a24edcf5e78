"""Classical rules that use curvature: L-BFGS and conjugate gradients for least squares."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from surestep.problem import Oracle, Vector
from surestep.problem.oracle import Image
from surestep.rules.base import GradientState, Need, Rule, State
from surestep.rules.limited_memory import Memory
from surestep.rules.line_search import search


class LBFGS(Rule):
    """L-BFGS: limited-memory BFGS with a line search for the strong Wolfe conditions.

    The line search evaluates as many gradients as it needs, and all of them are counted. The loss
    never rises: where rounding leaves nothing to gain, the rule stays where it is.

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

    def init(self, oracle: Oracle, x: Vector) -> GradientState:
        """An empty memory at `x`."""
        value, gradient = oracle.value_and_gradient(x)
        size = norm(gradient)
        scale = 1 / jnp.where(size > 1, size, 1.0)
        return GradientState(x, value, gradient, Memory.empty(self.memory_size, x, scale))

    def step(self, oracle: Oracle, state: GradientState) -> GradientState:
        """A quasi-Newton direction and a line search along it."""
        memory: Memory = state.memory
        wanted = -memory.descent(state.gradient)
        length, size = norm(wanted), norm(state.gradient)
        direction = wanted / jnp.where(length > 0, length, 1.0)
        slope = jnp.vdot(direction, state.gradient)
        # Where it does not descend, and where it is not a number, the gradient is followed.
        fit = slope < -jnp.finfo(slope.dtype).eps * size
        direction = jnp.where(fit, direction, -state.gradient / jnp.where(size > 0, size, 1.0))
        slope = jnp.where(fit, slope, -size)
        length = jnp.where(fit, length, memory.scale * size)
        # A step that rounding swallows would show nothing.
        seen = 4 * jnp.finfo(slope.dtype).eps * jnp.max(jnp.abs(state.x))
        first = jnp.maximum(length, seen)
        found = search(
            jax.value_and_grad(oracle.unmetered_value),
            *(state.x, (state.value, state.gradient), direction, slope),
            *(first, self.line_search_steps),
        )
        oracle.spend(gradients=found.evaluations)
        moved = found.length > 0
        # If no step lowers the loss, the next search follows the gradient, and begins lower.
        shrunk = memory.scale * jnp.minimum(1.0, 0.1 * found.shortest / first)
        memory = memory.forgotten(~fit | ~moved, jnp.where(moved, memory.scale, shrunk))
        move = found.length * direction
        change = (found.gradient - state.gradient) / jnp.where(moved, found.length, 1.0)
        return GradientState(
            jnp.where(moved, state.x + move, state.x),
            found.value,
            found.gradient,
            memory.with_pair(direction, jnp.where(moved, change, 0.0)),
        )


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


def norm(vector: Vector) -> Scalar:
    """The norm, without squares that overflow or vanish."""
    largest = jnp.max(jnp.abs(vector))
    size = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return size * jnp.sqrt(jnp.sum((vector / size) ** 2))
