"""The paper's learned rule for the lasso: a proximal gradient step with a learned correction."""

import dataclasses
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Scalar

from surestep.problem import Oracle, Vector
from surestep.rules.base import Need, Rule, State, unit
from surestep.rules.blocks import LinearChain


class ProximalState(State):
    """The current and the previous point, with the losses of both.

    Losses are the whole loss, its non-smooth and its smooth part.
    """

    x: Vector
    value: Scalar
    losses: Float[Array, " 3"]
    gradient: Vector
    previous: Vector
    previous_losses: Float[Array, " 3"]


class Proximal(Rule):
    """The paper's learned rule for the lasso: a proximal gradient step with a learned correction.

    It steps to `prox(x + (correction - gradient) / L)`. The entries of `x` that are zero and those
    that are not are treated apart:

    - Four directions (the unit vectors of gradient, last move and proximal residual, and the
      product of the first two) are split in two parts each.
    - Eight weights, one for each part, are computed from twelve features: the logarithms
      `log(1 + .)` of six norms, the change of three losses, the cosines between gradient and
      last move, and the penalty's weight.
    - Two corrections are computed from the weighted parts, coordinate by coordinate. One acts on
      the zero entries, one on the others; the second is multiplied by the norm of the last move.

    Where the paper's text and its public code differ, the published results come from the code,
    whose behaviour is the default; the last four arguments say what the text has. Vectors are
    normalised as a whole and then split, as in the code. At the start the previous point is the
    start itself.

    **Arguments:**

    - `weights`: the network of the weights, from 12 features to 8.
    - `corrections`: the network of the corrections, from 8 channels to 2.
    - `step_size`: `1 / L`, for the step and for the proximal map.
    - `loss_changes`: changes of `log(1 + loss)` (the code) or of the losses themselves (the text).
    - `third_norm`: the norm of `x - p` (the code) or of `p` (the text), `p` being a proximal step
      from `x`.
    - `first_acts_on`: the entries that the first correction acts on: zero in the code, non-zero in
      the text.
    - `gradient_of`: the loss whose gradient is taken: its smooth part (the code) or all of it (the
      text).

    ```python
    import jax
    import surestep as ss

    rule = ss.rules.Proximal.create(jax.random.key(0), step_size=0.01)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("weight", "nonnegative")

    weights: LinearChain
    corrections: LinearChain
    step_size: float
    loss_changes: Literal["log", "raw"] = eqx.field(static=True, default="log")
    third_norm: Literal["residual", "point"] = eqx.field(static=True, default="residual")
    first_acts_on: Literal["zero", "nonzero"] = eqx.field(static=True, default="zero")
    gradient_of: Literal["smooth", "whole"] = eqx.field(static=True, default="smooth")

    @classmethod
    def create(cls, key: Array, step_size: float) -> "Proximal":
        """Random weights in the paper's layers, and the code's choices."""
        key_weights, key_corrections = jax.random.split(key)
        return cls(
            weights=LinearChain.create(((12, 30), (30, 20), (20, 10), (10, 8)), key_weights),
            corrections=LinearChain.create(((8, 20), (20, 20), (20, 20), (20, 2)), key_corrections),
            step_size=step_size,
        )

    def prepare(self) -> "Proximal":
        """With both chains in the form for iterating."""
        return dataclasses.replace(
            self, weights=self.weights.prepared(), corrections=self.corrections.prepared()
        )

    def init(self, oracle: Oracle, x: Vector) -> ProximalState:
        """At rest in `x`."""
        value, losses, gradient = self._evaluate(oracle, x)
        return ProximalState(x, value, losses, gradient, x, losses)

    def step(self, oracle: Oracle, state: ProximalState) -> ProximalState:
        """The learned step, then an evaluation of the new point."""
        correction = self._correction(oracle, state)
        moved = state.x + self.step_size * (correction - state.gradient)
        x = oracle.prox(moved, self.step_size)
        value, losses, gradient = self._evaluate(oracle, x)
        return ProximalState(x, value, losses, gradient, state.x, state.losses)

    def _evaluate(self, oracle: Oracle, x: Vector) -> tuple[Scalar, Float[Array, " 3"], Vector]:
        parts = oracle.parts(x)
        gradient = parts.smooth_gradient
        if self.gradient_of == "whole":
            gradient = gradient + parts.nonsmooth_gradient
        return parts.value, jnp.stack([parts.value, parts.nonsmooth, parts.smooth]), gradient

    def _correction(self, oracle: Oracle, state: ProximalState) -> Vector:
        x, zero = state.x, state.x == 0
        point = oracle.prox(x - self.step_size * state.gradient, self.step_size)
        downhill, steepness = unit(state.gradient)
        onward, speed = unit(x - state.previous)
        inward, distance = unit(x - point)
        if self.third_norm == "residual":
            third, size = inward, distance
        else:
            third, size = unit(point)
        changes = state.losses - state.previous_losses
        if self.loss_changes == "log":
            changes = jnp.log1p(state.losses) - jnp.log1p(state.previous_losses)

        # The norm of a vector's part is its norm times that of its unit vector's part.
        norms = [
            norm * unit(part)[1]
            for direction, norm in ((downhill, steepness), (onward, speed), (third, size))
            for part in _parts(direction, zero)
        ]
        cosines = [jnp.sum(part) for part in _parts(downhill * onward, zero)]
        features = jnp.concatenate(
            [jnp.log1p(jnp.stack(norms)), changes, jnp.stack([*cosines, oracle.weight()])]
        )
        directions = jnp.stack(
            [
                part
                for direction in (downhill, onward, inward, downhill * onward)
                for part in _parts(direction, zero)
            ]
        )
        first, second = self.corrections(self.weights(features[:, None]) * directions)
        first_here = zero if self.first_acts_on == "zero" else ~zero
        return jnp.where(first_here, first, speed * second)


def _parts(vector: Vector, zero: Bool[Array, " n"]) -> tuple[Vector, Vector]:
    """A vector on the non-zero entries and on the zero entries, 0 elsewhere."""
    return jnp.where(zero, 0.0, vector), jnp.where(zero, vector, 0.0)
