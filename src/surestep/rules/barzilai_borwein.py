"""Gradient descent whose step is told by the last two gradients."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from surestep.problem import Vector
from surestep.rules.base import Fixed, GradientRule, product


class Move(NamedTuple):
    """The last move: along which direction, how far, and the gradient before it."""

    direction: Vector
    step: Scalar
    gradient: Vector


class BarzilaiBorwein(GradientRule):
    """Gradient descent with Barzilai's and Borwein's shorter step.

    The step is what would have made the last change of gradients look like a Hessian's: an
    iteration is a gradient and three products of vectors, and needs about as many iterations as
    methods that remember more. It may rise on the way, so it is meant for the inside of a
    `Checked`. Where the loss did not bend upwards along the last move, the step stays, but is no
    shorter than the first one.

    **Arguments:**

    - `step_size`: the first step; a number, or a scalar array if it is to be learned.
    - `metric`: a matrix, or a diagonal, that directions are multiplied with: the inverse of a
      Hessian that all instances have in common. None stands for no metric.
    - `longest`: no step is longer than so many times the first.

    ```python
    import surestep as ss

    rule = ss.rules.BarzilaiBorwein(step_size=0.01)
    ```
    """

    watches_loss: ClassVar[bool] = False

    step_size: float | Float[Array, ""]
    metric: Fixed | None = None
    longest: float = 100.0

    def _direction(self, gradient: Vector) -> Vector:
        if self.metric is None:
            return gradient
        metric = self.metric.array
        return metric * gradient if metric.ndim == 1 else product(metric, gradient)

    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> Move:
        """No move yet."""
        return Move(jnp.zeros_like(x), jnp.zeros((), x.dtype), gradient)

    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: Move
    ) -> tuple[Vector, Move]:
        """One step against the gradient."""
        direction = self._direction(gradient)
        change = gradient - memory.gradient
        bent = -memory.step * jnp.sum(memory.direction * change)
        length = jnp.sum(change * (direction - memory.direction))
        usable = (bent > 0) & (length > 0)
        found = bent / jnp.where(usable, length, 1.0)
        first = jnp.asarray(self.step_size, x.dtype)
        kept = jnp.maximum(memory.step, first)
        step = jnp.minimum(jnp.where(usable, found, kept), self.longest * first)
        return x - step * direction, Move(direction, step, gradient)
