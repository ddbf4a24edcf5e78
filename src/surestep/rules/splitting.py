"""Splitting: the two parts of a composite loss take turns, each minimised for itself."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from surestep.problem import Oracle, Vector
from surestep.problem.oracle import Image
from surestep.rules.base import Need, Rule, State


class SplitState(State):
    """The point of the non-smooth part and the (scaled) multiplier of the two points' equality."""

    x: Vector
    multiplier: Vector


class ADMM(Rule):
    """ADMM: the alternating direction method of multipliers, over-relaxed (Boyd et al., 3.4.3).

    Its point is that of the non-smooth part: on the lasso, the sparse one. It starts with that
    part in the problem's start and the multiplier at 0. One proximal map of the smooth part an
    iteration, counted as a gradient. It converges for every penalty and relaxations below 2.

    **Arguments:**

    - `penalty`: how much the distance of the two points costs (the literature's rho), which decides
      how fast it is; a number, or a scalar array if it is to be learned.
    - `relaxation`: how far beyond the smooth part's point to go: 1 for not at all, below 2.

    ```python
    import surestep as ss

    rule = ss.rules.ADMM(penalty=1.0)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("smooth_prox",)

    penalty: float | Float[Array, ""]
    relaxation: float | Float[Array, ""] = 1.6

    def init(self, oracle: Oracle, x: Vector) -> SplitState:
        """No multiplier yet."""
        return SplitState(x, jnp.zeros_like(x))

    def step(self, oracle: Oracle, state: SplitState) -> SplitState:
        """The smooth part, the other one, then the multiplier."""
        smooth = oracle.smooth_prox(state.x - state.multiplier, 1 / self.penalty)
        relaxed = self.relaxation * smooth + (1 - self.relaxation) * state.x
        x = oracle.prox(relaxed + state.multiplier, 1 / self.penalty)
        return SplitState(x, state.multiplier + relaxed - x)

    def relocate(self, oracle: Oracle, state: SplitState, x: Vector) -> SplitState:
        """Keep the multiplier, move the point."""
        return SplitState(x, state.multiplier)


class SaddleState(State):
    """The point and the multiplier of the linear map's value."""

    x: Vector
    dual: Image


class PrimalDual(Rule):
    """The primal-dual hybrid gradient method of Chambolle and Pock, in the form of Condat and Vũ.

    The smooth part is taken by its gradient, with the step sizes that the problem's `primal_step`
    allows; it starts with the multiplier at 0. An iteration takes the linear products of one
    gradient and is counted as one. What `primal_step` and the proximal map cost besides shows in
    the time.

    **Arguments:**

    - `dual_step`: the step of the multipliers, as a multiple of their size on the instance.

    ```python
    import surestep as ss

    rule = ss.rules.PrimalDual(dual_step=10.0)
    ```
    """

    needs: ClassVar[tuple[Need, ...]] = ("dual",)

    dual_step: float | Float[Array, ""]

    def init(self, oracle: Oracle, x: Vector) -> SaddleState:
        """No multiplier yet."""
        return SaddleState(x, jnp.zeros_like(oracle.transform(x)))

    def step(self, oracle: Oracle, state: SaddleState) -> SaddleState:
        """Descend in the point, then ascend in the multiplier from a point beyond."""
        dual_step = self.dual_step * oracle.dual_scale()
        slope = oracle.saddle_slope(state.x, state.dual)
        x = state.x - oracle.primal_step(slope, dual_step)
        ascent = dual_step * oracle.transform(2 * x - state.x)
        dual = oracle.dual_prox(state.dual + ascent, dual_step)
        return SaddleState(x, dual)

    def relocate(self, oracle: Oracle, state: SaddleState, x: Vector) -> SaddleState:
        """Keep the multiplier, move the point."""
        return SaddleState(x, state.dual)
