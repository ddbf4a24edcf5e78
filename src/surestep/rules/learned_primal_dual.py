"""A learned primal-dual method: numbers of its own for every early iteration."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from surestep.problem import Oracle, Vector
from surestep.problem.oracle import Image
from surestep.rules.base import Need, Rule, State
from surestep.rules.splitting import PrimalDual

_NUMBERS = 5


class LearnedSaddleState(State):
    """Two points in a row, the multiplier, and the time."""

    x: Vector
    dual: Image
    previous: Vector
    iteration: Int[Array, ""]


class LearnedPrimalDual(Rule):
    """The primal-dual method with learned numbers in its early iterations (unrolled).

    Every early iteration has five: factors of the dual step, of the dual step that the primal
    metric is made for and of the primal step (their logarithms), how far beyond the point the
    multiplier looks, and momentum. Each is a linear function of the logarithm of the multipliers'
    size on the instance (on pictures, of the penalty's weight). From then on it is `PrimalDual`,
    started from a good point and a good multiplier, which converges from anywhere. All numbers 0 is
    the classical method from the start.

    **Arguments:**

    - `numbers`: intercepts and slopes of every early iteration's five numbers; learned.
    - `dual_step`: the classical method's.

    ```python
    import surestep as ss

    rule = ss.rules.LearnedPrimalDual.around(ss.rules.PrimalDual(10.0), times=12)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("dual",)

    numbers: Float[Array, "2 time number"]
    dual_step: float

    @classmethod
    def around(cls, base: PrimalDual, times: int = 12) -> "LearnedPrimalDual":
        """The classical method as it is."""
        return cls(jnp.zeros((2, times, _NUMBERS)), float(base.dual_step))

    def init(self, oracle: Oracle, x: Vector) -> LearnedSaddleState:
        """No multiplier yet."""
        zero = jnp.zeros((), jnp.int32)
        dual = jnp.zeros_like(oracle.transform(x))
        return LearnedSaddleState(x, dual, x, zero)

    def step(self, oracle: Oracle, state: LearnedSaddleState) -> LearnedSaddleState:
        """The classical step with the numbers of this iteration."""
        times = self.numbers.shape[1]
        early = (state.iteration < times).astype(self.numbers.dtype)
        level, slope = self.numbers[:, jnp.minimum(state.iteration, times - 1)]
        numbers = early * (level + slope * jnp.log(oracle.dual_scale()))
        dual_factor, metric_factor, primal_factor = jnp.exp(jnp.clip(numbers[:3], -5.0, 5.0))
        beyond, momentum = numbers[3], numbers[4]
        step = self.dual_step * oracle.dual_scale()
        descent = oracle.saddle_slope(state.x, state.dual)
        change = primal_factor * oracle.primal_step(descent, metric_factor * step)
        x = state.x - change + momentum * (state.x - state.previous)
        looked = x + (1 + beyond) * (x - state.x)
        ascent = dual_factor * step * oracle.transform(looked)
        dual = oracle.dual_prox(state.dual + ascent, dual_factor * step)
        return LearnedSaddleState(x, dual, state.x, state.iteration + 1)
