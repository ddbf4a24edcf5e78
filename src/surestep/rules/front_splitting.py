"""Splitting for sums of functions of one number each, behind an affine map that is shared."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from surestep.base.errors import ConfigurationError
from surestep.problem import AffineFront, FrontProgram, Oracle, Vector, front_program
from surestep.rules.base import Fixed, Rule, State

Image = Float[Array, " k"]
Slopes = Callable[[Image], tuple[Image, Image]]
"""First and second derivatives of the functions that bend, each at its own number."""


class FrontState(State):
    """The point, the split-off image and its multiplier, and what an instance keeps the same."""

    x: Vector
    image: Image
    multiplier: Image
    offset: Image
    """The image of 0."""
    origin: Vector
    """The point that belongs to an image and a multiplier that are equal."""
    shift: Float[Array, " size"]
    """What the traced front has beside multiples of the rows."""


class Matrices(NamedTuple):
    """What is computed from the penalties."""

    inverse: Float[Array, "n n"]
    pull: Float[Array, "n k"]
    """From an image to the point."""


class FrontADMM(Rule):
    """ADMM for `sum_i h_i(z_i; theta)` with `z = A x + b(theta)`, where theta leaves `A` alone.

    A problem has this form without saying so: the traced loss tells, and `A` is found
    (`surestep check` says whether). The image `z` is split off. The point is a least-squares
    solution, with a matrix that is known before an instance is; then every `h_i` has a proximal map
    of its own, by a few safeguarded Newton steps. Quadratic functions are not split off. Neither is
    the curvature that the others are known to have everywhere. No step runs the user's loss.

    The penalty may be another one for every row, and is learned; so is the relaxation. For convex
    `h_i` every penalty leads to the minimum, so training can make it slow, but not wrong.

    **Arguments:**

    - `matrix`: `A`; the rows whose functions are not quadratic come first.
    - `curvature`: for each row, the curvature that is not split off; all of it, for a quadratic.
    - `log_penalty`: the logarithm of the penalty, one for all rows that are split off or one for
      each; learned.
    - `relaxation`: how far beyond the new image to go, between 0.1 and 1.95; learned.
    - `bent`: how many rows are split off.
    - `first`: which of the traced front's numbers the rows are; None if they are all, in order.
    - `places`, `scales`: of which row each of these numbers is a multiple, and which multiple.
    - `newton`: how many Newton steps a proximal map takes.
    - `inverse`, `pull`: what `prepare` computes from matrix and penalties.

    ```python
    import jax
    import jax.numpy as jnp
    import surestep as ss

    features = jax.random.normal(jax.random.key(0), (20, 3))
    problem = ss.make_problem(
        lambda x, labels: jnp.sum(jnp.logaddexp(0.0, -labels * (features @ x))),
        x0=jnp.zeros(3),
        sample=lambda key: jax.random.rademacher(key, (20,), float),
    )
    rule = ss.rules.FrontADMM(
        ss.rules.Fixed(features), ss.rules.Fixed(jnp.zeros(20)), jnp.log(0.1), jnp.asarray(1.6), 20
    )
    ```
    """

    matrix: Fixed
    curvature: Fixed
    log_penalty: Float[Array, ""] | Float[Array, " k"]
    relaxation: Float[Array, ""]
    bent: int = eqx.field(static=True)
    first: Int[Array, " m"] | None = None
    places: Int[Array, " size"] | None = None
    scales: Fixed | None = None
    newton: int = eqx.field(static=True, default=3)
    inverse: Fixed | None = None
    pull: Fixed | None = None

    @classmethod
    def of(
        cls,
        front: AffineFront,
        penalty: float,
        relaxation: float = 1.6,
        kind: str = "float64",
        newton: int = 3,
    ) -> "FrontADMM":
        """One penalty for all rows of a front that was found."""
        return cls(
            Fixed(jnp.asarray(front.matrix, kind)),
            Fixed(jnp.asarray(front.curvature, kind)),
            jnp.asarray(jnp.log(penalty), kind),
            jnp.asarray(relaxation, kind),
            front.bent,
            None if front.plain else jnp.asarray(front.first, jnp.int32),
            None if front.plain else jnp.asarray(front.places, jnp.int32),
            None if front.plain else Fixed(jnp.asarray(front.scales, kind)),
            newton,
        )

    def prepare(self) -> "FrontADMM":
        """With its matrices."""
        made = self._matrices()
        return dataclasses.replace(self, inverse=Fixed(made.inverse), pull=Fixed(made.pull))

    def _matrices(self) -> Matrices:
        if self.inverse is not None and self.pull is not None:
            return Matrices(self.inverse.array, self.pull.array)
        matrix, split = self.matrix.array, self.matrix.array[: self.bent]
        penalties = jnp.broadcast_to(jnp.exp(self.log_penalty), (self.bent,))
        weights = self.curvature.array.at[: self.bent].add(penalties)
        inverse = jnp.linalg.inv(matrix.T @ (weights[:, None] * matrix))
        return Matrices(inverse, inverse @ (split * penalties[:, None]).T)

    def init(self, oracle: Oracle, x: Vector) -> FrontState:
        """The image of the start; the slopes there tell the multiplier to begin with."""
        oracle.spend(gradients=1)
        matrix, curvature, bent = self.matrix.array, self.curvature.array, self.bent
        program = self._program(oracle)
        values = program.values(jnp.zeros_like(x), oracle.theta)
        offset, shift = self._represented(values)
        image = matrix @ x + offset
        slope = jax.grad(lambda z: program.outer(self._spread(z, shift), oracle.theta))(image)
        slope = jax.lax.stop_gradient(slope)
        # Of quadratic functions the slope at 0 is all that is not known yet.
        penalty = jnp.exp(self.log_penalty)
        multiplier = (slope - curvature * image)[:bent] / penalty
        pushed = (curvature * offset).at[:bent].add(penalty * offset[:bent])
        pushed = pushed.at[bent:].add((slope - curvature * image)[bent:])
        origin = -(self._matrices().inverse @ (pushed @ matrix))
        return FrontState(x, image[:bent], multiplier, offset[:bent], origin, shift)

    def step(self, oracle: Oracle, state: FrontState) -> FrontState:
        """The point, its image, relaxed, then every function by itself."""
        oracle.spend(gradients=1)
        x = self._matrices().pull @ (state.image - state.multiplier) + state.origin
        reached = self.matrix.array[: self.bent] @ x + state.offset
        relaxation = jnp.clip(self.relaxation, 0.1, 1.95)
        aim = state.image + relaxation * (reached - state.image) + state.multiplier
        image = self._prox(self._slopes(oracle, state.shift), aim, state.image)
        return dataclasses.replace(state, x=x, image=image, multiplier=aim - image)

    def _program(self, oracle: Oracle) -> FrontProgram:
        program = front_program(oracle.problem, oracle.theta)
        size = len(self.matrix.array) if self.places is None else self.places.size
        if program is None or program.size != size:
            raise ConfigurationError(
                f"FrontADMM was made for a loss with {size} numbers behind its affine part; "
                f"this one has {None if program is None else program.size}"
            )
        return program

    def _represented(self, values: Float[Array, " size"]) -> tuple[Array, Array]:
        """The rows' share of a traced front at 0, and what is left of it."""
        if self.first is None or self.places is None or self.scales is None:
            return values, values[:0]
        offset = values[self.first]
        return offset, values - self.scales.array * offset[self.places]

    def _spread(self, z: Float[Array, " m"], shift: Float[Array, " size"]) -> Array:
        """The traced front's numbers, from those of the rows."""
        if self.places is None or self.scales is None:
            return z
        return self.scales.array * z[self.places] + shift

    def _slopes(self, oracle: Oracle, shift: Float[Array, " size"]) -> Slopes:
        program = self._program(oracle)

        def outer(image: Image) -> Array:
            rest = jnp.zeros(len(self.matrix.array) - self.bent, image.dtype)
            return program.outer(self._spread(jnp.concatenate([image, rest]), shift), oracle.theta)

        def slopes(image: Image) -> tuple[Image, Image]:
            return jax.jvp(jax.grad(outer), (image,), (jnp.ones_like(image),))

        return slopes

    def _prox(self, slopes: Slopes, aim: Image, begun: Image) -> Image:
        """Where `h'(s) - curvature s + penalty (s - aim)` is 0, for each row.

        It rises with at least the penalty's slope, so a value at one point says between which two
        points the root is. Derivatives are those of the root, without derivatives of the slopes.
        """
        penalty, kept = jnp.exp(self.log_penalty), self.curvature.array[: self.bent]
        fixed_penalty, fixed_aim = jax.lax.stop_gradient((penalty, aim))
        low, high = jnp.full_like(aim, -jnp.inf), jnp.full_like(aim, jnp.inf)
        s = jax.lax.stop_gradient(begun)
        for number in range(self.newton):
            first, second = jax.lax.stop_gradient(slopes(s))
            height = first - kept * s + fixed_penalty * (s - fixed_aim)
            steepness = jnp.maximum(second - kept, 0.0) + fixed_penalty
            low = jnp.maximum(low, jnp.where(height > 0, s - height / fixed_penalty, s))
            high = jnp.minimum(high, jnp.where(height > 0, s, s - height / fixed_penalty))
            if number == self.newton - 1:
                # The same height, with derivatives by penalty and aim.
                height = first - kept * s + penalty * (s - aim)
            moved = s - height / steepness
            s = jnp.where((moved >= low) & (moved <= high), moved, (low + high) / 2)
        return s
