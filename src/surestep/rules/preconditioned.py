"""The paper's learned rule for training a neural network: two learned preconditioners."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from surestep.problem.oracle import Vector
from surestep.rules.base import unit
from surestep.rules.blocks import Perceptron
from surestep.rules.previous import LooksBack, Previous

LossScale = Literal["log", "log1p"]
"""How losses become features: `log(loss)` or `log(1 + loss)`."""


class Preconditioned(LooksBack):
    """`x + direction`, mixed coordinate by coordinate from six channels.

    - The channels are the gradient's unit vector, the last move's unit vector, each once as it is
      and once times a learned vector (a diagonal preconditioner), and the last two points.
    - The four vectors are weighted first, by numbers computed from five features: the logarithms
      of the two norms (`log(1 + .)`), of the loss and of the previous loss, and the scalar
      product of the two unit vectors.

    At the start the previous point is the start itself. The paper's figure has no biases and
    `log(1 + loss)`; its published result comes from code with biases in every layer and
    `log(loss)`, which is the default here.
    """

    weighting: Perceptron
    direction: Perceptron
    gradient_scaling: Float[Array, " n"]
    """The preconditioner of the gradient's direction (the paper's g)."""
    momentum_scaling: Float[Array, " n"]
    """The preconditioner of the last move's direction (the paper's m)."""
    loss_scale: LossScale = "log"

    @classmethod
    def create(
        cls,
        key: Array,
        dimension: int,
        *,
        biases: bool = True,
        loss_scale: LossScale = "log",
        scaling: float = 1e-3,
    ) -> "Preconditioned":
        """Random layers as in the paper; both preconditioners start with all entries `scaling`."""
        key_weighting, key_direction = jax.random.split(key)
        return cls(
            weighting=Perceptron.create((5, 8, 8, 4), key_weighting, biases=biases),
            direction=Perceptron.create((6, 16, 16, 16, 16, 16, 1), key_direction, biases=biases),
            gradient_scaling=jnp.full(dimension, scaling, jnp.result_type(float)),
            momentum_scaling=jnp.full(dimension, scaling, jnp.result_type(float)),
            loss_scale=loss_scale,
        )

    def prepare(self) -> "Preconditioned":
        """With both perceptrons in the form for iterating."""
        return dataclasses.replace(
            self, weighting=self.weighting.prepared(), direction=self.direction.prepared()
        )

    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: Previous
    ) -> tuple[Vector, Previous]:
        """The learned step."""
        downhill, steepness = unit(gradient)
        onward, speed = unit(x - memory.x)
        agreement = jnp.vdot(downhill, onward)
        features = [
            *jnp.log1p(jnp.stack([steepness, speed])),
            *self._scaled(jnp.stack([value, memory.value])),
            agreement,
        ]
        weights = self.weighting(jnp.stack(features)[:, None])
        directions = [
            self.gradient_scaling * downhill,
            downhill,
            onward,
            self.momentum_scaling * onward,
        ]
        channels = jnp.concatenate([weights * jnp.stack(directions), jnp.stack([x, memory.x])])
        return x + self.direction(channels)[0], Previous(x, value)

    def _scaled(self, losses: Float[Array, " 2"]) -> Float[Array, " 2"]:
        if self.loss_scale == "log1p":
            return jnp.log1p(losses)
        # A loss of exactly 0 is a number, too.
        return jnp.log(jnp.maximum(losses, jnp.finfo(losses.dtype).tiny))
