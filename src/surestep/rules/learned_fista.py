"""Accelerated proximal gradients with learned numbers for every early iteration."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from surestep.problem import Oracle, Vector
from surestep.rules.base import Rule, State
from surestep.rules.classical import ExtrapolatedState, FistaWithRestart


class LearnedFistaState(State):
    """Where FISTA stands, and the time."""

    x: Vector
    inner: ExtrapolatedState
    iteration: Int[Array, ""]


class LearnedFista(Rule):
    """FISTA with restart whose steps and momenta were learned, iteration by iteration (unrolled).

    A step is FISTA's times `exp(log_steps)`, a momentum FISTA's times `exp(log_gains)`. The first
    iterations have numbers of their own, the later ones share the last. Untrained, it is exactly
    `FistaWithRestart`. Long steps are what is won, and why it needs a check or a safeguard.

    **Arguments:**

    - `log_steps`: the logarithms of the steps' factors, one for each early iteration; learned.
    - `log_gains`: the same of the momenta; learned.
    - `step_size`: FISTA's, `1 / L`.

    ```python
    import surestep as ss

    rule = ss.rules.LearnedFista.around(ss.rules.FistaWithRestart(0.01), times=30)
    ```
    """

    log_steps: Float[Array, " time"]
    log_gains: Float[Array, " time"]
    step_size: float

    @classmethod
    def around(cls, base: FistaWithRestart, times: int = 30) -> "LearnedFista":
        """FISTA with restart as it is."""
        return cls(jnp.zeros(times), jnp.zeros(times), float(base.step_size))

    def init(self, oracle: Oracle, x: Vector) -> LearnedFistaState:
        """At rest in `x`."""
        inner = FistaWithRestart(self.step_size).init(oracle, x)
        return LearnedFistaState(x, inner, jnp.zeros((), jnp.int32))

    def step(self, oracle: Oracle, state: LearnedFistaState) -> LearnedFistaState:
        """FISTA's step with the numbers of this iteration."""
        now = jnp.minimum(state.iteration, self.log_steps.size - 1)
        # Bounded, so that training cannot ask for steps that nothing could guard.
        stretch = jnp.exp(jnp.clip(self.log_steps[now], -3.0, 3.0))
        gain = jnp.exp(jnp.clip(self.log_gains[now], -3.0, 0.7))
        before = state.inner
        pushed = ExtrapolatedState(before.x, before.previous, before.momentum * gain, before.scalar)
        inner = FistaWithRestart(self.step_size * stretch).step(oracle, pushed)
        return LearnedFistaState(inner.x, inner, state.iteration + 1)
