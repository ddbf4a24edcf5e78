"""A learned metric around any rule: one scale for each coordinate."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from surestep.base.errors import ConfigurationError
from surestep.problem import Oracle, Parts, Vector
from surestep.problem.oracle import Image
from surestep.rules.base import Rule, State
from surestep.rules.wrapper import Wrapper


class ScaledState(State):
    """The point in the problem's coordinates, and the inner rule's state in its own."""

    x: Vector
    inner: State


class Scaled(Wrapper):
    """A rule in a learned diagonal metric: its coordinates are `y`, with `x = exp(log_scales) * y`.

    Scales of 1 give exactly the inner rule. Other scales make it the same rule in another metric:
    conjugate gradients become preconditioned ones, and a proximal rule takes one step size for
    each coordinate, in the step and in the proximal map, so that minimisers stay its fixed points.

    Learn the scales with pieces as long as the horizon: the inner rule's memory is in scaled
    coordinates, so a piece that begins later would see another scale as another point.

    **Arguments:**

    - `rule`: the inner rule.
    - `log_scales`: the logarithms of the scales, one for each coordinate; learned.

    ```python
    import surestep as ss

    rule = ss.rules.Scaled.around(ss.rules.ConjugateGradients(), dimension=20)
    ```
    """

    learns_start: ClassVar[bool] = True
    """The inner rule's state is in coordinates that are learned."""

    rule: Rule
    log_scales: Float[Array, " n"]

    @classmethod
    def around(cls, rule: Rule, dimension: int) -> "Scaled":
        """The rule as it is: all scales are 1."""
        return cls(rule, jnp.zeros(dimension))

    def init(self, oracle: Oracle, x: Vector) -> ScaledState:
        """The inner rule begins at the same point."""
        scaled = self._scaled(oracle)
        return scaled.seen(self.rule.init(scaled, x / scaled.scales))

    def resume(self, oracle: Oracle, x: Vector) -> ScaledState:
        """The inner rule begins at the same point."""
        scaled = self._scaled(oracle)
        return scaled.seen(self.rule.resume(scaled, x / scaled.scales))

    def step(self, oracle: Oracle, state: ScaledState) -> ScaledState:
        """A step of the inner rule."""
        scaled = self._scaled(oracle)
        return scaled.seen(self.rule.step(scaled, state.inner))

    def loss(self, oracle: Oracle, state: ScaledState) -> Scalar:
        """As the inner rule knows it."""
        return self.rule.loss(self._scaled(oracle), state.inner)

    def relocate(self, oracle: Oracle, state: ScaledState, x: Vector) -> ScaledState:
        """Move the inner rule."""
        scaled = self._scaled(oracle)
        return scaled.seen(self.rule.relocate(scaled, state.inner, x / scaled.scales))

    def _scaled(self, oracle: Oracle) -> "ScaledOracle":
        return ScaledOracle(oracle, jnp.exp(self.log_scales))


class ScaledOracle(Oracle):
    """Answers in scaled coordinates, and counts in the oracle it asks."""

    def __init__(self, oracle: Oracle, scales: Float[Array, " n"]) -> None:
        self.oracle, self.scales = oracle, scales
        self.problem, self.theta, self.through = oracle.problem, oracle.theta, oracle.through
        self.start, self.unravel = oracle.start / scales, oracle.unravel

    def seen(self, inner: Any) -> ScaledState:
        """The inner rule's state, and its point in the problem's coordinates."""
        return ScaledState(self.scales * inner.x, inner)

    def fresh(self) -> "ScaledOracle":
        """Another one around a fresh oracle."""
        return ScaledOracle(self.oracle.fresh(), self.scales)

    def spent(self) -> tuple[int | Array, int | Array]:
        """What was counted there."""
        return self.oracle.spent()

    def spend(self, *, gradients: int | Array = 0, values: int | Array = 0) -> None:
        """Count where all is counted."""
        self.oracle.spend(gradients=gradients, values=values)

    def value(self, x: Vector) -> Scalar:
        """The loss."""
        return self.oracle.value(self.scales * x)

    def unmetered_value(self, x: Vector) -> Scalar:
        """The loss, for inner loops."""
        return self.oracle.unmetered_value(self.scales * x)

    def value_and_gradient(self, x: Vector) -> tuple[Scalar, Vector]:
        """The loss and its gradient with respect to the scaled coordinates."""
        value, gradient = self.oracle.value_and_gradient(self.scales * x)
        return value, self.scales * gradient

    def smooth_gradient(self, x: Vector) -> Vector:
        """The smooth part's gradient with respect to the scaled coordinates."""
        return self.scales * self.oracle.smooth_gradient(self.scales * x)

    def parts(self, x: Vector) -> Parts:
        """Both parts, their gradients with respect to the scaled coordinates."""
        found = self.oracle.parts(self.scales * x)
        return found._replace(
            smooth_gradient=self.scales * found.smooth_gradient,
            nonsmooth_gradient=self.scales * found.nonsmooth_gradient,
        )

    def weight(self) -> Scalar:
        """The penalty's weight."""
        return self.oracle.weight()

    def prox(self, x: Vector, step: Float[Array, "..."] | float) -> Vector:
        """The proximal map of the scaled function: every coordinate has its own step."""
        return self.oracle.prox(self.scales * x, step * self.scales**2) / self.scales

    def smooth_prox(self, x: Vector, step: Scalar | float) -> Vector:
        """Not offered: every metric would need a factorisation of its own."""
        raise ConfigurationError(
            "a rule that asks for the smooth part's proximal map cannot be scaled"
        )

    def saddle_slope(self, x: Vector, y: Vector) -> Vector:
        """Not offered: the steps of a dualised problem are made for its own coordinates."""
        raise ConfigurationError("a rule that asks for a dualised problem cannot be scaled")

    def transform(self, x: Vector) -> Vector:
        """Not offered either."""
        raise ConfigurationError("a rule that asks for a dualised problem cannot be scaled")

    def smoothness(self) -> Scalar:
        """A Lipschitz constant in scaled coordinates: the largest scale decides."""
        return self.oracle.smoothness() * jnp.max(self.scales) ** 2

    def residual(self, x: Vector) -> Image:
        """The residual."""
        return self.oracle.residual(self.scales * x)

    def residual_product(self, direction: Vector) -> Image:
        """How the residual changes along a direction."""
        return self.oracle.residual_product(self.scales * direction)

    def residual_pullback(self, residual: Image) -> Vector:
        """The pulled-back residual in scaled coordinates."""
        return self.scales * self.oracle.residual_pullback(residual)
