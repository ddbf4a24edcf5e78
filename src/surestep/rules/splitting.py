"""Splitting: the two parts of a composite loss take turns, each minimised for itself."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from surestep.oracle import Oracle, Vector
from surestep.rule import Need, Rule, State


class SplitState(State):
    """The point of the non-smooth part and the (scaled) multiplier of the two points' equality."""

    x: Vector
    value: Scalar
    multiplier: Vector


class ADMM(Rule):
    """The alternating direction method of multipliers, over-relaxed (Boyd et al., section 3.4.3).

    Its point is that of the non-smooth part: on the lasso, the sparse one. It starts with that
    part in the problem's start and the multiplier at 0. One proximal map of the smooth part an
    iteration, counted as a gradient. It converges for every penalty and relaxations below 2; the
    penalty decides how fast.
    """

    needs: ClassVar[tuple[Need, ...]] = ("smooth_prox",)

    penalty: float | Float[Array, ""]
    relaxation: float | Float[Array, ""] = 1.6

    def init(self, oracle: Oracle, x: Vector) -> SplitState:
        """No multiplier yet."""
        return SplitState(x, oracle.value(x), jnp.zeros_like(x))

    def step(self, oracle: Oracle, state: SplitState) -> SplitState:
        """The smooth part, the other one, then the multiplier."""
        smooth = oracle.smooth_prox(state.x - state.multiplier, 1 / self.penalty)
        relaxed = self.relaxation * smooth + (1 - self.relaxation) * state.x
        x = oracle.prox(relaxed + state.multiplier, 1 / self.penalty)
        return SplitState(x, oracle.value(x), state.multiplier + relaxed - x)

    def relocate(self, oracle: Oracle, state: SplitState, x: Vector) -> SplitState:
        """Keep the multiplier, move the point."""
        return SplitState(x, oracle.value(x), state.multiplier)


class LearnedSplitState(State):
    """The point, the multiplier for the penalty that was used last, and the time."""

    x: Vector
    value: Scalar
    multiplier: Vector
    log_penalty: Scalar
    iteration: Int[Array, ""]


class LearnedSplitting(Rule):
    """ADMM whose penalty and relaxation were learned, iteration by iteration.

    The first iterations have numbers of their own, the later ones share the last: from there on it
    is ADMM with a fixed penalty and a relaxation below 2, which converges from wherever it
    stands. A change of the penalty rescales the multiplier. Untrained, it is exactly `ADMM`.
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
        return LearnedSplitState(x, oracle.value(x), jnp.zeros_like(x), self.log_penalties[0], zero)

    def step(self, oracle: Oracle, state: LearnedSplitState) -> LearnedSplitState:
        """ADMM's step with the numbers of this iteration."""
        now = jnp.minimum(state.iteration, self.log_penalties.size - 1)
        log_penalty = self.log_penalties[now]
        relaxation = jnp.clip(self.relaxations[now], 0.1, 1.95)
        # The multiplier is kept in units of the penalty.
        multiplier = state.multiplier * jnp.exp(state.log_penalty - log_penalty)
        moved = ADMM(jnp.exp(log_penalty), relaxation).step(
            oracle, SplitState(state.x, state.value, multiplier)
        )
        return LearnedSplitState(
            moved.x, moved.value, moved.multiplier, log_penalty, state.iteration + 1
        )
