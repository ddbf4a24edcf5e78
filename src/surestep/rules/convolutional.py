"""The paper's learned rule for pictures: a small convolutional network gives the direction."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Scalar

from surestep.problem import Vector
from surestep.rules.base import GradientRule, unit
from surestep.rules.blocks import ConvolutionChain, LinearChain


class Convolutional(GradientRule):
    """The paper's learned rule for pictures: a small convolutional network gives the direction.

    It steps to `x + scale * direction`, both learned.

    - `direction` comes from three 3 x 3 convolutions over the gradient's unit vector, the last
      move's unit vector and their product, in the shape of the picture.
    - `scale` is a number computed from the logarithms `log(1 + .)` of the two norms.

    Neither block has biases. At the start the previous point is the start itself.

    **Arguments:**

    - `direction`: the convolutions, from 3 channels to 1.
    - `scale`: the network of the scale, from 2 features to 1.
    - `height`, `width`: the picture's shape.

    ```python
    import jax
    import surestep as ss

    rule = ss.rules.Convolutional.create(jax.random.key(0), height=16, width=12)
    ```
    """

    direction: ConvolutionChain
    scale: LinearChain
    height: int = eqx.field(static=True)
    width: int = eqx.field(static=True)

    @classmethod
    def create(
        cls, key: Array, height: int, width: int, channels: int = 16, features: int = 8
    ) -> "Convolutional":
        """Random weights; the paper has 16 channels and 8 features."""
        key_direction, key_scale = jax.random.split(key)
        c, f = channels, features
        return cls(
            direction=ConvolutionChain.create((3, c, c, 1), key_direction),
            scale=LinearChain.create(((2, f), (f, f), (f, 1)), key_scale),
            height=height,
            width=width,
        )

    def prepare(self) -> "Convolutional":
        """The direction's convolutions in the form for iterating."""
        return dataclasses.replace(self, direction=self.direction.prepared())

    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> Vector:
        """The start is its own predecessor."""
        return x

    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: Vector
    ) -> tuple[Vector, Vector]:
        """The learned step."""
        downhill, steepness = unit(gradient)
        onward, speed = unit(x - memory)
        channels = jnp.stack([downhill, onward, downhill * onward])
        picture = self.direction(channels.reshape(3, self.height, self.width))
        features = jnp.log1p(jnp.stack([steepness, speed]))
        scale = self.scale(features[:, None])[0, 0]
        return x + scale * picture.reshape(x.shape), x
