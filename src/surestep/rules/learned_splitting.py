"""A learned splitting method: ADMM with numbers of its own for every early iteration."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from surestep.problem import Oracle, Vector
from surestep.rules.base import Need, Rule, State
from surestep.rules.splitting import ADMM, SplitState


class LearnedSplitState(State):
    """The point, the multiplier for the penalty that was used last, and the time."""

    x: Vector
    multiplier: Vector
    log_penalty: Scalar
    iteration: Int[Array, ""]


class LearnedSplitting(Rule):
    """ADMM whose penalty and relaxation were learned, iteration by iteration (unrolled).

    The first iterations have numbers of their own, the later ones share the last: from there on it
    is ADMM with a fixed penalty and a relaxation below 2, which converges from wherever it
    stands. A change of the penalty rescales the multiplier. Untrained, it is exactly `ADMM`.

    **Arguments:**

    - `log_penalties`: the logarithms of the penalties, one for each early iteration; learned.
    - `relaxations`: the same for the relaxations, which are kept between 0.1 and 1.95; learned.

    ```python
    import surestep as ss

    rule = ss.rules.LearnedSplitting.around(ss.rules.ADMM(penalty=1.0), times=30)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("smooth_prox",)

    log_penalties: Float[Array, " time"]
    relaxations: Float[Array, " time"]

    @classmethod
    def around(cls, base: ADMM, times: int = 30) -> "LearnedSplitting":
        """ADMM as it is."""
        return cls(
            jnp.full(times, jnp.log(base.penalty)), jnp.full(times, jnp.asarray(base.relaxation))
        )

    def init(self, oracle: Oracle, x: Vector) -> LearnedSplitState:
        """No multiplier yet."""
        zero = jnp.zeros((), jnp.int32)
        return LearnedSplitState(x, jnp.zeros_like(x), self.log_penalties[0], zero)

    def step(self, oracle: Oracle, state: LearnedSplitState) -> LearnedSplitState:
        """ADMM's step with the numbers of this iteration."""
        now = jnp.minimum(state.iteration, self.log_penalties.size - 1)
        log_penalty = self.log_penalties[now]
        relaxation = jnp.clip(self.relaxations[now], 0.1, 1.95)
        # The multiplier is kept in units of the penalty.
        multiplier = state.multiplier * jnp.exp(state.log_penalty - log_penalty)
        moved = ADMM(jnp.exp(log_penalty), relaxation).step(oracle, SplitState(state.x, multiplier))
        return LearnedSplitState(moved.x, moved.multiplier, log_penalty, state.iteration + 1)
