"""A learned correction of a classical rule: untrained, it is exactly that rule."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree, Scalar

from surestep.problem import Vector
from surestep.rules.base import GradientRule, Need, unit
from surestep.rules.blocks import Perceptron

_FEATURES, _WEIGHTS = 5, 3


class ResidualMemory(eqx.Module):
    """The classical rule's memory, the point and the loss before, and the time."""

    base: PyTree[Any]
    x: Vector
    value: Scalar
    iteration: Int[Array, ""]


class Residual(GradientRule):
    """A learned correction of a classical gradient rule: untrained, it is exactly that rule.

    - Every coordinate of the classical step is multiplied by a gain of its own and a common one.
    - Two directions join it, the gradient's and the last move's, as long as the classical step
      times a weight.
    - The common gain and the two weights are computed from the logarithms `log(1 + .)` of the
      gradient's norm, of the last move's norm, of the loss, of the previous loss and of the time.

    Gains begin at 1 and weights at 0, so no imitation is needed before training.

    **Arguments:**

    - `base`: the classical rule, one that needs a gradient an iteration.
    - `log_gains`: the logarithms of the coordinates' gains; learned.
    - `gate`: the network of the common gain and the two weights; learned.

    ```python
    import jax
    import surestep as ss

    rule = ss.rules.Residual.around(ss.rules.Adam(0.01), dimension=20, key=jax.random.key(0))
    ```
    """

    base: GradientRule
    log_gains: Float[Array, " n"]
    gate: Perceptron

    @classmethod
    def around(cls, base: GradientRule, dimension: int, key: Array, width: int = 16) -> "Residual":
        """The classical rule as it is."""
        gate = Perceptron.create((_FEATURES, width, width, _WEIGHTS), key, biases=True)
        return cls(base, jnp.zeros(dimension), _silent(gate))

    @property
    def needs(self) -> tuple[Need, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the classical rule needs, and losses that have logarithms."""
        return tuple(dict.fromkeys((*self.base.needs, "nonnegative")))

    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> ResidualMemory:
        """The start is its own predecessor."""
        base = self.base.remember(x, value, gradient)
        return ResidualMemory(base, x, value, jnp.zeros((), jnp.int32))

    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: ResidualMemory
    ) -> tuple[Vector, ResidualMemory]:
        """The classical step and its correction."""
        # The classical step is a constant to training, as gradients are: through a base with a
        # long memory, derivatives of pieces would be cut in the wrong places.
        proposed, base = jax.lax.stop_gradient(self.base.update(x, value, gradient, memory.base))
        classical = proposed + (x - jax.lax.stop_gradient(x))
        move = proposed - jax.lax.stop_gradient(x)
        downhill, steepness = unit(gradient)
        onward, speed = unit(x - memory.x)
        time = memory.iteration.astype(x.dtype)
        features = jnp.log1p(jnp.stack([steepness, speed, value, memory.value, time]))
        common, down, on = self.gate(features[:, None])[:, 0]
        # Bounded, so that a strange instance cannot blow the step up.
        gains = jnp.exp(jnp.clip(self.log_gains + common, -7.0, 7.0))
        bent = unit(move)[1] * (on * onward - down * downhill)
        # Written as a change of the classical point, which is exact where nothing was learned.
        x_next = classical + ((gains - 1) * move + bent)
        return x_next, ResidualMemory(base, x, value, memory.iteration + 1)


def _silent(network: Perceptron) -> Perceptron:
    """The same network with a last layer that answers 0."""
    *weights, last = network.weights
    *biases, last_bias = network.biases
    return Perceptron((*weights, jnp.zeros_like(last)), (*biases, jnp.zeros_like(last_bias)))
