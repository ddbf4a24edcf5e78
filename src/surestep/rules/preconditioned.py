"""The paper's learned rule for training a neural network: two learned preconditioners."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from surestep.problem import Vector
from surestep.rules.base import unit
from surestep.rules.blocks import Perceptron
from surestep.rules.previous import LooksBack, Previous

LossScale = Literal["log", "log1p"]
"""How losses become features: `log(loss)` or `log(1 + loss)`."""


class Preconditioned(LooksBack):
    """The paper's learned rule for training a network: two learned diagonal preconditioners.

    It steps to `x + direction`, mixed coordinate by coordinate from six channels.

    - The channels are the gradient's unit vector, the last move's unit vector, each once as it is
      and once times its preconditioner, and the last two points.
    - The four vectors are weighted first, by numbers computed from five features: the logarithms
      of the two norms (`log(1 + .)`), of the loss and of the previous loss, and the scalar
      product of the two unit vectors.

    At the start the previous point is the start itself. The paper's figure has no biases and
    `log(1 + loss)`; its published result comes from code with biases in every layer and
    `log(loss)`, which is the default here.

    **Arguments:**

    - `weighting`: the network of the weights, from 5 features to 4.
    - `direction`: the network that mixes, from 6 channels to 1.
    - `gradient_scaling`: the preconditioner of the gradient's direction (the paper's g).
    - `momentum_scaling`: the preconditioner of the last move's direction (the paper's m).
    - `loss_scale`: how losses become features, `log` or `log1p`.

    ```python
    import jax
    import surestep as ss

    rule = ss.rules.Preconditioned.create(jax.random.key(0), dimension=20)
    ```
    """

    weighting: Perceptron
    direction: Perceptron
    gradient_scaling: Float[Array, " n"]
    momentum_scaling: Float[Array, " n"]
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
