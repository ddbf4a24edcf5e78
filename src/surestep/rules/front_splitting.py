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
from surestep.rules.base import Fixed, Rule, State, product

_ENOUGH = 0.1  # what may be left of a slope, as a share of what it was before Newton's steps
_MOST = 40  # steps more than the usual ones

Image = Float[Array, " k"]
Slopes = Callable[[Image], tuple[Image, Image]]
"""First and second derivatives of the functions that bend, each at its own number."""


class FrontState(State):
    """The point, the split-off image and its multiplier, and what an instance keeps the same."""

    x: Vector
    image: Image
    multiplier: Image
    offset: Float[Array, " m"]
    """The image of 0; those of rows that are not split off come last."""
    origin: Vector
    """The point that belongs to an image and a multiplier that are equal."""
    shift: Float[Array, " size"]
    """What the traced front has beside multiples of the rows."""


class _Looked(NamedTuple):
    """A point, how high and how steep the function is there, and between what its root is."""

    s: Image
    height: Image
    steepness: Image
    low: Image
    high: Image

    def following(self, guarded: bool) -> Image:
        """Where Newton's method goes; with a guard, the middle if that is not between the ends."""
        moved = self.s - self.height / self.steepness
        if not guarded:
            return moved
        inside = (moved >= self.low) & (moved <= self.high)
        return jnp.where(inside, moved, (self.low + self.high) / 2)


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
    `h_i` and guarded proximal maps every penalty leads to the minimum, so training can make it
    slow, but not wrong. Without the guard that is the business of a `Checked` around it.

    **Arguments:**

    - `matrix`: the rows of `A` whose functions are not quadratic, which are split off.
    - `quadratics`: its other rows.
    - `curvature`: for each row of both, the curvature that is not split off; for a quadratic, all.
    - `log_penalty`: the logarithm of the penalty, one for all rows that are split off or one for
      each; learned.
    - `relaxation`: how far beyond the new image to go, between 0.1 and 1.95; learned.
    - `first`: which of the traced front's numbers the rows are, those of `matrix` first;
      None if they are all, in order.
    - `places`, `scales`: of which row each of these numbers is a multiple, and which multiple.
    - `newton`: how many Newton steps a proximal map takes: several from the last image, or one
      from where it aims at, which is exact for functions that are quadratic beyond a bound.
    - `guarded`: whether it takes more where these do not do. Without that a batch is twice as fast,
      but with penalties far below the curvature the iterates may circle around the minimum.
    - `single`: whether the products of an iteration are computed in single precision. All else
      keeps the problem's, so their rounding does not add up.
    - `penalty`, `inverse`, `pull`, `push`: what `prepare` computes from matrix and penalties.

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
        ss.rules.Fixed(features),
        ss.rules.Fixed(jnp.zeros((0, 3))),
        ss.rules.Fixed(jnp.zeros(20)),
        jnp.log(0.1),
        jnp.asarray(1.6),
    )
    ```
    """

    matrix: Fixed
    quadratics: Fixed
    curvature: Fixed
    log_penalty: Float[Array, ""] | Float[Array, " k"]
    relaxation: Float[Array, ""]
    first: Int[Array, " m"] | None = None
    places: Int[Array, " size"] | None = None
    scales: Fixed | None = None
    newton: int = eqx.field(static=True, default=2)
    guarded: bool = eqx.field(static=True, default=True)
    single: bool = eqx.field(static=True, default=False)
    penalty: Fixed | None = None
    inverse: Fixed | None = None
    pull: Fixed | None = None
    push: Fixed | None = None

    @classmethod
    def of(
        cls,
        front: AffineFront,
        penalty: float,
        relaxation: float = 1.6,
        kind: str = "float64",
        newton: int = 2,
        guarded: bool = True,
    ) -> "FrontADMM":
        """One penalty for all rows of a front that was found."""
        return cls(
            Fixed(jnp.asarray(front.matrix[: front.bent], kind)),
            Fixed(jnp.asarray(front.matrix[front.bent :], kind)),
            Fixed(jnp.asarray(front.curvature, kind)),
            jnp.asarray(jnp.log(penalty), kind),
            jnp.asarray(relaxation, kind),
            None if front.plain else jnp.asarray(front.first, jnp.int32),
            None if front.plain else jnp.asarray(front.places, jnp.int32),
            None if front.plain else Fixed(jnp.asarray(front.scales, kind)),
            newton,
            guarded,
        )

    def prepare(self) -> "FrontADMM":
        """With its matrices."""
        made = self._matrices()
        pull, push = made.pull, self.matrix.array
        if self.single:
            pull, push = pull.astype(jnp.float32), push.astype(jnp.float32)
        return dataclasses.replace(
            self,
            penalty=Fixed(self._penalty()),
            inverse=Fixed(made.inverse),
            pull=Fixed(pull),
            push=Fixed(push),
        )

    def _penalty(self) -> Float[Array, "..."]:
        return jnp.exp(self.log_penalty) if self.penalty is None else self.penalty.array

    def _matrices(self) -> Matrices:
        if self.inverse is not None and self.pull is not None:
            return Matrices(self.inverse.array, self.pull.array)
        split, rest, bent = self.matrix.array, self.quadratics.array, len(self.matrix.array)
        penalties = jnp.broadcast_to(jnp.exp(self.log_penalty), (bent,))
        kept, whole = self.curvature.array[:bent], self.curvature.array[bent:]
        square = split.T @ ((penalties + kept)[:, None] * split) + rest.T @ (whole[:, None] * rest)
        inverse = jnp.linalg.inv(square)
        return Matrices(inverse, inverse @ (split * penalties[:, None]).T)

    def init(self, oracle: Oracle, x: Vector) -> FrontState:
        """The image of the start; the slopes there tell the multiplier to begin with."""
        oracle.spend(gradients=1)
        split, rest, bent = self.matrix.array, self.quadratics.array, len(self.matrix.array)
        program, penalty = self._program(oracle), self._penalty()
        values = program.values(jnp.zeros_like(x), oracle.theta)
        offset, shift = self._represented(values)
        image = jnp.concatenate([split @ x, rest @ x]) + offset
        slope = jax.grad(lambda z: self._outer(program, oracle, shift, z[:bent], z[bent:]))(image)
        # What is left of the slopes belongs to the multiplier, or is a quadratic's linear term.
        left = jax.lax.stop_gradient(slope) - self.curvature.array * image
        pushed = self.curvature.array * offset
        pulled = (pushed[:bent] + penalty * offset[:bent]) @ split
        pulled += (pushed[bent:] + left[bent:]) @ rest
        origin = -(self._matrices().inverse @ pulled)
        return FrontState(x, image[:bent], left[:bent] / penalty, offset, origin, shift)

    def step(self, oracle: Oracle, state: FrontState) -> FrontState:
        """The point, its image, relaxed, then every function by itself."""
        oracle.spend(gradients=1)
        push = self.matrix.array if self.push is None else self.push.array
        x = product(self._matrices().pull, state.image - state.multiplier) + state.origin
        reached = product(push, x) + state.offset[: state.image.size]
        relaxation = jnp.clip(self.relaxation, 0.1, 1.95)
        aim = state.image + relaxation * (reached - state.image) + state.multiplier
        # It is used in several places, and would be computed anew in each of them.
        aim = jax.lax.optimization_barrier(aim)
        begun = state.image if self.newton > 1 else aim
        image = self._prox(self._slopes(oracle, state.shift), aim, begun)
        return dataclasses.replace(state, x=x, image=image, multiplier=aim - image)

    def stationarity(
        self, oracle: Oracle, state: FrontState, step: float | Array
    ) -> tuple[Array, Vector]:
        """The gradient, through the image: two products, where the loss may take many steps."""
        del step
        oracle.spend(gradients=1)
        split, rest, bent = self.matrix.array, self.quadratics.array, len(self.matrix.array)
        value, slope = jax.value_and_grad(self._of_image(oracle, state))(self._image(state))
        return value, slope[:bent] @ split + slope[bent:] @ rest

    def loss(self, oracle: Oracle, state: FrontState) -> Array:
        """Through the image, too."""
        oracle.spend(values=1)
        return self._of_image(oracle, state)(self._image(state))

    def _image(self, state: FrontState) -> Float[Array, " m"]:
        x = state.x
        return jnp.concatenate([self.matrix.array @ x, self.quadratics.array @ x]) + state.offset

    def _of_image(self, oracle: Oracle, state: FrontState) -> Callable[[Array], Array]:
        program, bent = self._program(oracle), len(self.matrix.array)
        return lambda z: self._outer(program, oracle, state.shift, z[:bent], z[bent:])

    def _program(self, oracle: Oracle) -> FrontProgram:
        program = front_program(oracle.problem, oracle.theta)
        size = len(self.curvature.array) if self.places is None else self.places.size
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

    def _outer(
        self, program: FrontProgram, oracle: Oracle, shift: Array, image: Image, rest: Array
    ) -> Array:
        """The loss, from the images of the rows."""
        if self.places is None or self.scales is None:
            return program.outer(oracle.theta, image, rest)
        both = jnp.concatenate([image, rest])
        return program.outer(oracle.theta, self.scales.array * both[self.places] + shift)

    def _slopes(self, oracle: Oracle, shift: Float[Array, " size"]) -> Slopes:
        program = self._program(oracle)
        rest = jnp.zeros(len(self.quadratics.array), self.curvature.array.dtype)

        def outer(image: Image) -> Array:
            return self._outer(program, oracle, shift, image, rest)

        def slopes(image: Image) -> tuple[Image, Image]:
            found = jax.jvp(jax.grad(outer), (image,), (jnp.ones_like(image),))
            # They are used in several places, and would be computed anew in each of them.
            return jax.lax.optimization_barrier(found)

        return slopes

    def _prox(self, slopes: Slopes, aim: Image, begun: Image) -> Image:
        """Where `h'(s) - curvature s + penalty (s - aim)` is 0, for each row.

        That function rises with at least the penalty's slope, so its value at one point says
        between which two points the root is. Derivatives are those of the root: none of the slopes.
        """
        penalty, kept = self._penalty(), self.curvature.array[: aim.size]
        fixed, target = jax.lax.stop_gradient((penalty, aim))

        def look(s: Image, low: Image, high: Image) -> _Looked:
            first, second = slopes(s)
            height = first - kept * s + fixed * (s - target)
            end = s - height / fixed
            return _Looked(
                s,
                height,
                jnp.maximum(second - kept, 0.0) + fixed,
                jnp.maximum(low, jnp.minimum(s, end)),
                jnp.minimum(high, jnp.maximum(s, end)),
            )

        def again(looked: _Looked) -> _Looked:
            return look(looked.following(self.guarded), looked.low, looked.high)

        unknown = jnp.full_like(target, jnp.inf)
        looked = look(jax.lax.stop_gradient(begun), -unknown, unknown)
        enough = _enough(looked, fixed, target)
        for _ in range(self.newton - 1):
            looked = again(looked)
        if self.guarded:
            _, looked = jax.lax.while_loop(
                lambda now: (now[0] < _MOST) & jnp.any(jnp.abs(now[1].height) > enough),
                lambda now: (now[0] + 1, again(now[1])),
                (0, looked),
            )
        found = jax.lax.stop_gradient(looked.following(self.guarded))
        return _root(found, penalty, aim, jax.lax.stop_gradient(looked.steepness))


@jax.custom_jvp
def _root(found: Image, penalty: Array, aim: Image, steepness: Image) -> Image:
    """What was found, with the derivatives of a root of `h'(s) + penalty (s - aim)`."""
    del penalty, aim, steepness
    return found


@_root.defjvp
def _root_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Image, Image]:
    found, penalty, aim, steepness = primals
    _, more_penalty, more_aim, _ = tangents
    pushed = penalty * more_aim - more_penalty * (found - aim)
    return found, pushed / steepness


def _enough(looked: _Looked, penalty: Array, target: Image) -> Image:
    """Below which heights steps count as exact proximal maps; what is wrong by rounding stays."""
    own = jnp.abs(looked.height - penalty * (looked.s - target))
    size = own + looked.steepness * (jnp.abs(looked.s) + jnp.abs(target))
    return _ENOUGH * jnp.abs(looked.height) + 64 * jnp.finfo(size.dtype).eps * size
