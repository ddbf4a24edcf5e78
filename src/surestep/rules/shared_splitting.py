"""Splitting for a smooth part that bends in the same way on every instance: factored once."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.base.errors import ConfigurationError
from surestep.problem import Oracle, Vector
from surestep.rules.base import Fixed, Rule, State, product


class SharedSplitState(State):
    """The point of the non-smooth part, the sum of point and multiplier."""

    x: Vector
    sum: Vector
    constant: Vector
    """The smooth part's step from 0, which an instance keeps."""


class SimplexSplitState(State):
    """On the simplex the sum tells the point: its positive part, scaled to the total.

    The point is computed when somebody looks, because no iteration needs it.
    """

    sum: Vector
    constant: Vector
    total: float = eqx.field(static=True)

    @property
    def x(self) -> Vector:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The point that is shown; the one that iterates adds up to the total in the end."""
        positive = jnp.maximum(self.sum, 0.0)
        together = jnp.sum(positive)
        some = together > 0
        scaled = positive * (self.total / jnp.where(some, together, 1.0))
        return jnp.where(some, scaled, self.total / self.sum.shape[-1])


class SharedADMM(Rule):
    """ADMM for a smooth part `x'Hx / 2 - c'x` whose Hessian `H` all instances share.

    The penalty may be another one for every coordinate, and is learned; so is the relaxation. With
    `H` and the penalties the matrix of an iteration is known before an instance is: an iteration is
    one product with it and one proximal map. Every penalty leads to the minimum, so training can
    make it slow, but not wrong. The multiplier starts as the proximal map at the start tells.

    **Arguments:**

    - `hessian`: `H`, which nothing learns; or, of a low rank, a matrix `D` of fewer rows than
      columns with `H = D'D`, whose two products are then cheaper than one with an inverse.
    - `log_penalty`: the logarithm of the penalty, one for all coordinates or one for each; learned.
    - `relaxation`: how far beyond the smooth part's point to go, between 0.1 and 1.95; learned.
    - `total`: for the simplex: what the coordinates add up to. That constraint is then part of the
      smooth step, the proximal map is the positive part, and the point is scaled to the total.
    - `single`: whether products are computed in single precision. All else keeps the problem's, so
      the rounding of a product, of relative size 1e-7, does not add up.
    - `steps`, `resolvent`, `down`, `up`, `offset`: what `prepare` computes. The steps are one over
      the penalties. The smooth part's proximal map is `resolvent @ v`, or `v - up @ (down @ v)`,
      beside a constant; the offset brings it to the total.

    ```python
    import jax.numpy as jnp
    import surestep as ss

    rule = ss.rules.SharedADMM.of(jnp.eye(3), penalty=0.1)
    ```
    """

    hessian: Fixed
    log_penalty: Float[Array, ""] | Float[Array, " n"]
    relaxation: Float[Array, ""]
    total: float | None = eqx.field(static=True, default=None)
    single: bool = eqx.field(static=True, default=False)
    steps: Fixed | None = None
    resolvent: Fixed | None = None
    down: Fixed | None = None
    up: Fixed | None = None
    offset: Fixed | None = None

    def __check_init__(self) -> None:
        """Refuse a total that nothing positive adds up to."""
        if self.total is not None and not self.total > 0:
            raise ConfigurationError(f"a simplex needs a positive total, not {self.total}")

    @classmethod
    def of(
        cls,
        hessian: Float[Array, "m n"],
        penalty: float,
        relaxation: float = 1.6,
        total: float | None = None,
    ) -> "SharedADMM":
        """One penalty for all coordinates."""
        kind = hessian.dtype
        log_penalty = jnp.asarray(jnp.log(penalty), kind)
        return cls(Fixed(hessian), log_penalty, jnp.asarray(relaxation, kind), total)

    def prepare(self) -> "SharedADMM":
        """With its matrices."""
        array = self.hessian.array
        rows, size = array.shape
        penalties = jnp.broadcast_to(jnp.exp(self.log_penalty), (size,))
        with_steps = dataclasses.replace(self, steps=Fixed(jnp.exp(-self.log_penalty)))
        if rows < size and self.total is None:
            # The Sherman-Morrison-Woodbury formula: a small inverse and two products.
            scaled = array / penalties
            small = jnp.linalg.inv(jnp.eye(rows, dtype=array.dtype) + scaled @ array.T)
            down, up = self._stored(small @ array), self._stored(scaled.T)
            return dataclasses.replace(with_steps, down=down, up=up)
        whole = array if rows == size else array.T @ array
        inverse = jnp.linalg.inv(whole + jnp.diag(penalties))
        if self.total is None:
            return dataclasses.replace(with_steps, resolvent=self._stored(inverse * penalties))
        ones = jnp.sum(inverse, axis=1)
        share = ones / jnp.sum(ones)
        resolvent = self._stored((inverse - jnp.outer(share, ones)) * penalties)
        return dataclasses.replace(
            with_steps, resolvent=resolvent, offset=Fixed(self.total * share)
        )

    def _smooth(self, v: Vector) -> Vector:
        """The smooth part's proximal map without its constant."""
        if self.down is not None and self.up is not None:
            return v - product(self.up.array, product(self.down.array, v))
        if self.resolvent is None:
            return self.prepare()._smooth(v)
        return product(self.resolvent.array, v)

    def _steps(self) -> Float[Array, "..."]:
        return jnp.exp(-self.log_penalty) if self.steps is None else self.steps.array

    def _offset(self) -> Vector | float:
        if self.total is None:
            return 0.0
        return self.prepare()._offset() if self.offset is None else self.offset.array

    def _stored(self, matrix: Float[Array, "m n"]) -> Fixed:
        return Fixed(matrix.astype(jnp.float32) if self.single else matrix)

    def _bent(self, x: Vector) -> Vector:
        array = self.hessian.array
        return array @ x if array.shape[0] == array.shape[1] else array.T @ (array @ x)

    def stationarity(
        self, oracle: Oracle, state: SharedSplitState | SimplexSplitState, step: float | Array
    ) -> tuple[Array, Vector]:
        """The subgradient that the multiplier tells: no proximal map is needed for it."""
        del step
        parts, penalty = oracle.parts(state.x), jnp.exp(self.log_penalty)
        if self.total is None:
            return parts.value, parts.smooth_gradient + penalty * (state.sum - state.x)
        slope = parts.smooth_gradient + penalty * jnp.minimum(state.sum, 0.0)
        # What all coordinates have in common belongs to the sum, which is fixed.
        return parts.value, slope - jnp.mean(slope)

    def init(self, oracle: Oracle, x: Vector) -> SharedSplitState | SimplexSplitState:
        """One gradient tells the linear term, and the multiplier to begin with."""
        gradient, steps = oracle.smooth_gradient(x), self._steps()
        constant = self._smooth(steps * (self._bent(x) - gradient)) + self._offset()
        if self.total is None:
            forward = x - steps * gradient
            multiplier = forward - oracle.prox(forward, steps)
            return SharedSplitState(x, x + multiplier, constant)
        # At a solution all coordinates that are not 0 have this slope.
        gradient = gradient - jnp.vdot(x, gradient) / self.total
        multiplier = jnp.minimum(-steps * gradient, 0.0)
        begun = jnp.where(x > 0, x, multiplier)
        return SimplexSplitState(begun, constant, self.total)  # pyright: ignore[reportCallIssue]

    def step(
        self, oracle: Oracle, state: SharedSplitState | SimplexSplitState
    ) -> SharedSplitState | SimplexSplitState:
        """The smooth part, relaxed, then the other one."""
        oracle.spend(gradients=1)
        relaxation = jnp.clip(self.relaxation, 0.1, 1.95)
        if isinstance(state, SimplexSplitState):
            # Twice the positive part less the sum is the absolute value.
            smooth = self._smooth(jnp.abs(state.sum)) + state.constant
            moved = state.sum + relaxation * (smooth - jnp.maximum(state.sum, 0.0))
            return dataclasses.replace(state, sum=moved)
        smooth = self._smooth(2 * state.x - state.sum) + state.constant
        moved = state.sum + relaxation * (smooth - state.x)
        return SharedSplitState(oracle.prox(moved, self._steps()), moved, state.constant)
