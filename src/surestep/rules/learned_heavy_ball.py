"""The heavy ball method with learned numbers for every early iteration."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from surestep.problem import Vector
from surestep.rules.base import GradientRule
from surestep.rules.classical import HeavyBall


class LearnedHeavyBall(GradientRule):
    """The heavy ball method whose steps and momenta were learned, iteration by iteration.

    The first iterations have numbers of their own, the later ones share the last. An iteration is
    a gradient and two sums, so it suits small problems, where others spend their time on
    themselves. It may rise, so it is meant for the inside of a `Checked`.

    **Arguments:**

    - `log_steps`: the logarithms of the step sizes, one for each early iteration; learned.
    - `momenta`: the shares of the last move, likewise, kept between 0 and 0.99; learned.

    ```python
    import surestep as ss

    rule = ss.rules.LearnedHeavyBall.around(ss.rules.HeavyBall(0.01, 0.8), times=30)
    ```
    """

    watches_loss: ClassVar[bool] = False

    log_steps: Float[Array, " time"]
    momenta: Float[Array, " time"]

    @classmethod
    def around(cls, base: HeavyBall, times: int = 30) -> "LearnedHeavyBall":
        """The heavy ball method as it is."""
        return cls(
            jnp.full(times, jnp.log(base.step_size)), jnp.full(times, jnp.asarray(base.momentum))
        )

    def remember(self, x: Vector, value: Scalar, gradient: Vector) -> tuple[Vector, Int[Array, ""]]:
        """The previous point is the start itself."""
        return x, jnp.zeros((), jnp.int32)

    def update(
        self, x: Vector, value: Scalar, gradient: Vector, memory: tuple[Vector, Int[Array, ""]]
    ) -> tuple[Vector, tuple[Vector, Int[Array, ""]]]:
        """A gradient step plus momentum, with the numbers of this iteration."""
        before, iteration = memory
        now = jnp.minimum(iteration, self.log_steps.size - 1)
        momentum = jnp.clip(self.momenta[now], 0.0, 0.99)
        moved = x - jnp.exp(self.log_steps[now]) * gradient + momentum * (x - before)
        return moved, (x, iteration + 1)
