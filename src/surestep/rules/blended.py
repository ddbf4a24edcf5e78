"""The paper's learned rule for MNIST: two pairs of preconditioners, one for the end of the way."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from surestep.problem import Vector
from surestep.rules.base import unit
from surestep.rules.blocks import LinearChain
from surestep.rules.previous import LooksBack, Previous


class Blended(LooksBack):
    """The paper's learned rule for MNIST: seven weighted directions.

    It steps to `x + direction`, mixed coordinate by coordinate.

    - The directions are the gradient's unit vector, the last move's unit vector, their product,
      and both unit vectors times each of two learned vectors of their own.
    - Their seven weights are computed from the logarithms `log(1 + .)` of the two norms, the loss
      and the previous loss.

    Neither block has biases. At the start the previous point is the start itself.

    **Arguments:**

    - `weights`: the network of the weights, from 4 features to 7.
    - `direction`: the network that mixes, from 7 channels to 1.
    - `gradient_scales`, `momentum_scales`: two learned vectors (diagonal preconditioners) each.
    - `near_end`: the loss at which the second pair of them takes over from the first: the second
      counts `exp(-(loss / near_end)^4)`, the first the rest. So does the paper's code; the paper's
      figure has no such factor, which `None` gives.

    ```python
    import jax
    import surestep as ss

    rule = ss.rules.Blended.create(jax.random.key(0), dimension=20)
    ```
    """

    weights: LinearChain
    direction: LinearChain
    gradient_scales: Float[Array, "2 n"]
    momentum_scales: Float[Array, "2 n"]
    near_end: float | None = 0.01

    @classmethod
    def create(
        cls, key: Array, dimension: int, scale: float = 1e-3, near_end: float | None = 0.01
    ) -> "Blended":
        """Random weights as in the paper; all learned vectors begin at `scale`."""
        key_weights, key_direction = jax.random.split(key)
        return cls(
            weights=LinearChain.create(((4, 15), (15, 20), (20, 15), (15, 7)), key_weights),
            direction=LinearChain.create(((7, 15), (15, 20), (20, 15), (15, 1)), key_direction),
            gradient_scales=jnp.full((2, dimension), scale),
            momentum_scales=jnp.full((2, dimension), scale),
            near_end=near_end,
        )

    def prepare(self) -> "Blended":
        """With both chains in the form for iterating."""
        return dataclasses.replace(
            self, weights=self.weights.prepared(), direction=self.direction.prepared()
        )

    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: Previous
    ) -> tuple[Vector, Previous]:
        """The learned step."""
        downhill, steepness = unit(gradient)
        onward, speed = unit(x - memory.x)
        features = jnp.log1p(jnp.stack([steepness, speed, value, memory.value]))
        weights = self.weights(features[:, None])
        early, late = self._shares(value)
        directions = [
            early * self.gradient_scales[0] * downhill,
            late * self.gradient_scales[1] * downhill,
            downhill,
            downhill * onward,
            onward,
            early * self.momentum_scales[0] * onward,
            late * self.momentum_scales[1] * onward,
        ]
        return x + self.direction(weights * jnp.stack(directions))[0], Previous(x, value)

    def _shares(self, value: Scalar) -> tuple[Scalar | float, Scalar | float]:
        """How much the first and the second pair of learned vectors count."""
        if self.near_end is None:
            return 1.0, 1.0
        # At ten times the boundary nothing is left of the second pair, and a larger number's
        # fourth power would overflow.
        late = jnp.exp(-(jnp.minimum(value / self.near_end, 10.0) ** 4))
        return 1 - late, late
