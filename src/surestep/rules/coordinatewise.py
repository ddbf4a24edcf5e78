"""The paper's learned rule for quadratics: one small network applied to every coordinate."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Scalar

from surestep.problem import Vector
from surestep.rules.base import unit
from surestep.rules.blocks import LinearChain
from surestep.rules.previous import LooksBack, Previous


class Coordinatewise(LooksBack):
    """The paper's learned rule for quadratics: one small network applied to every coordinate.

    It steps to `x + scale * direction`, both learned.

    - `direction` mixes, coordinate by coordinate, the gradient's unit vector, the last move's
      unit vector and their product.
    - `scale` is a number computed from the logarithms `log(1 + .)` of the two norms, the loss
      and the *previous* loss.

    Neither block has biases. At the start the previous point is the start itself.

    **Arguments:**

    - `direction`: the network of the direction, from 3 channels to 1.
    - `scale`: the network of the scale, from 4 features to 1.

    ```python
    import jax
    import surestep as ss

    rule = ss.rules.Coordinatewise.create(jax.random.key(0))
    ```
    """

    direction: LinearChain
    scale: LinearChain

    @classmethod
    def create(cls, key: Array, channels: int = 16, features: int = 8) -> "Coordinatewise":
        """Random weights; the paper has 16 channels and 8 features."""
        key_direction, key_scale = jax.random.split(key)
        c, f = channels, features
        return cls(
            direction=LinearChain.create(((3, c), (c, c, c), (c, c, c), (c, 1)), key_direction),
            scale=LinearChain.create(((4, f), (f, f, f), (f, f, f), (f, 1)), key_scale),
        )

    def prepare(self) -> "Coordinatewise":
        """Multiply adjacent linear maps once."""
        return Coordinatewise(self.direction.prepared(), self.scale.prepared())

    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: Previous
    ) -> tuple[Vector, Previous]:
        """The learned step."""
        downhill, steepness = unit(gradient)
        onward, speed = unit(x - memory.x)
        direction = self.direction(jnp.stack([downhill, onward, downhill * onward]))[0]
        features = jnp.log1p(jnp.stack([steepness, speed, value, memory.value]))
        scale = self.scale(features[:, None])[0, 0]
        return x + scale * direction, Previous(x, value)
