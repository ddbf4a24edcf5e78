"""Splitting for a smooth part that bends in the same way on every instance: factored once."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.problem import Oracle, Vector
from surestep.rules.base import Fixed, Rule, State


class SharedSplitState(State):
    """The point of the non-smooth part, the sum of point and multiplier, the linear term."""

    x: Vector
    sum: Vector
    linear: Vector


class SharedADMM(Rule):
    """ADMM for a smooth part `x'Hx / 2 - c'x` whose Hessian `H` all instances share.

    The penalty may be another one for every coordinate, and is learned; so is the relaxation. With
    `H` and the penalties the matrix of an iteration is known before an instance is: an iteration is
    one product with it and one proximal map. Every penalty leads to the minimum, so training can
    make it slow, but not wrong. The multiplier starts as the proximal map at the start tells.

    **Arguments:**

    - `hessian`: `H`, which nothing learns.
    - `log_penalty`: the logarithm of the penalty, one for all coordinates or one for each; learned.
    - `relaxation`: how far beyond the smooth part's point to go, between 0.1 and 1.95; learned.
    - `inverse`: what `prepare` computes, the inverse of `H` plus the penalties.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.SharedADMM.of(jnp.eye(3), penalty=0.1)
    ```
    """

    hessian: Fixed
    log_penalty: Float[Array, ""] | Float[Array, " n"]
    relaxation: Float[Array, ""]
    inverse: Fixed | None = None

    @classmethod
    def of(
        cls, hessian: Float[Array, "n n"], penalty: float, relaxation: float = 1.6
    ) -> "SharedADMM":
        """One penalty for all coordinates."""
        kind = hessian.dtype
        return cls(
            Fixed(hessian), jnp.asarray(jnp.log(penalty), kind), jnp.asarray(relaxation, kind)
        )

    def prepare(self) -> "SharedADMM":
        """With its matrix."""
        return dataclasses.replace(self, inverse=Fixed(self._inverse()))

    def _inverse(self) -> Float[Array, "n n"]:
        hessian = self.hessian.array
        penalties = jnp.broadcast_to(jnp.exp(self.log_penalty), hessian.shape[:1])
        return jnp.linalg.inv(hessian + jnp.diag(penalties))

    def init(self, oracle: Oracle, x: Vector) -> SharedSplitState:
        """One gradient tells the linear term, and the multiplier to begin with."""
        gradient, penalty = oracle.smooth_gradient(x), jnp.exp(self.log_penalty)
        linear = self.hessian.array @ x - gradient
        forward = x - gradient / penalty
        multiplier = forward - oracle.prox(forward, 1 / penalty)
        return SharedSplitState(x, x + multiplier, linear)

    def step(self, oracle: Oracle, state: SharedSplitState) -> SharedSplitState:
        """The smooth part, relaxed, then the other one."""
        oracle.spend(gradients=1)
        penalty = jnp.exp(self.log_penalty)
        inverse = self._inverse() if self.inverse is None else self.inverse.array
        smooth = inverse @ (state.linear + penalty * (2 * state.x - state.sum))
        relaxation = jnp.clip(self.relaxation, 0.1, 1.95)
        moved = state.sum + relaxation * (smooth - state.x)
        return SharedSplitState(oracle.prox(moved, 1 / penalty), moved, state.linear)
